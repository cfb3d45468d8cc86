// Parses expressions of chat templates, with the precedence of Jinja2.
#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "base/read_limits.h"
#include "text/chat/parser.h"

namespace neap::chat {

ExpressionPtr Parser::node(Expression::Kind kind, int line, std::string text) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->text = std::move(text);
  return made;
}

void Parser::add(Expression& to, ExpressionPtr part) const {
  if (part) to.height = std::max(to.height, part->height + 1);
  constexpr const ReadLimits& kOfExpression = read_limits::kTemplateExpression;
  if (to.height > kOfExpression.levels) error(limit_text(kOfExpression, Excess::kLevels));
  to.parts.push_back(std::move(part));
}

// Parses one expression, or several separated by commas.
ExpressionPtr Parser::tuple(bool condition, bool parentheses) {
  const int line = now().line;
  std::vector<ExpressionPtr> parts;
  bool commas = false;
  while (true) {
    if (now().kind == Token::kVariableEnd || now().kind == Token::kBlockEnd || at_operator(")") ||
        at_name("recursive"))
      break;
    parts.push_back(expression(condition));
    if (!at_operator(",")) break;
    commas = true;
    take();
  }
  if (!commas && parts.size() == 1) return std::move(parts.front());
  if (parts.empty() && !parentheses) error("Expected an expression");
  auto made = node(Expression::kTuple, line);
  for (ExpressionPtr& part : parts) add(*made, std::move(part));
  return made;
}

ExpressionPtr Parser::expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? condition() : either();
}

ExpressionPtr Parser::condition() {
  ExpressionPtr value = either();
  while (at_name("if")) {
    auto made = node(Expression::kCondition, take().line);
    add(*made, std::move(value));
    add(*made, either());
    if (take_name("else")) {
      const Nesting nesting(*this);
      add(*made, condition());
    }
    value = std::move(made);
  }
  return value;
}

ExpressionPtr Parser::chain(const char* word, ExpressionPtr (Parser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  while (at_name(word)) {
    auto made = node(Expression::kBinary, take().line, word);
    add(*made, std::move(left));
    add(*made, (this->*operand)());
    left = std::move(made);
  }
  return left;
}

ExpressionPtr Parser::either() {
  return chain("or", &Parser::both);
}

ExpressionPtr Parser::both() {
  return chain("and", &Parser::negation);
}

ExpressionPtr Parser::negation() {
  if (!at_name("not")) return comparison();
  const Nesting nesting(*this);
  auto made = node(Expression::kUnary, take().line, "not");
  add(*made, negation());
  return made;
}

ExpressionPtr Parser::comparison() {
  const int line = now().line;
  ExpressionPtr first = arithmetic(0);
  auto made = node(Expression::kCompare, line);
  while (true) {
    std::string op;
    for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
      if (at_operator(known)) op = known;
    }
    if (at_name("in")) op = "in";
    if (at_name("not") && peek().is(Token::kName, "in")) {
      take();
      op = "not in";
    }
    if (op.empty()) break;
    take();
    made->operators.push_back(op);
    add(*made, arithmetic(0));
  }
  if (made->operators.empty()) return first;
  add(*made, std::move(first));
  std::rotate(made->parts.begin(), made->parts.end() - 1, made->parts.end());
  return made;
}

ExpressionPtr Parser::left_associative(const std::vector<std::string_view>& operators, int level) {
  ExpressionPtr left = arithmetic(level + 1);
  while (true) {
    std::string_view found;
    for (const std::string_view op : operators) {
      if (at_operator(op)) found = op;
    }
    if (found.empty()) return left;
    auto made = node(Expression::kBinary, take().line, std::string(found));
    add(*made, std::move(left));
    add(*made, arithmetic(level + 1));
    left = std::move(made);
  }
}

ExpressionPtr Parser::arithmetic(int level) {
  switch (level) {
    case 0:
      return left_associative({"+", "-"}, level);
    case 1:
      return left_associative({"~"}, level);
    case 2:
      return left_associative({"*", "/", "//", "%"}, level);
    case 3:
      return left_associative({"**"}, level);
    default:
      return unary();
  }
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Nesting nesting(*this);
  ExpressionPtr value;
  if (at_operator("-") || at_operator("+")) {
    const Token sign = take();
    value = node(Expression::kUnary, sign.line, sign.text);
    add(*value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::primary() {
  const Token token = take();
  const auto constant = [&](Value value) {
    auto made = node(Expression::kConstant, token.line);
    made->value = std::move(value);
    return made;
  };
  switch (token.kind) {
    case Token::kName:
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(Value());
      return node(Expression::kName, token.line, token.text);
    case Token::kString: {
      std::string text = token.text;
      while (now().kind == Token::kString) text += take().text;
      return node(Expression::kLiteral, token.line, std::move(text));
    }
    case Token::kInteger: {
      std::int64_t value = 0;
      const auto [end, ec] =
          std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (ec != std::errc() || end != token.text.data() + token.text.size())
        error(format("the number {} is too large", token.text));
      return constant(value);
    }
    case Token::kFloat:
      return constant(std::strtod(token.text.c_str(), nullptr));
    default:
      break;
  }
  if (token.is(Token::kOperator, "(")) {
    ExpressionPtr value = tuple(true, true);
    expect_operator(")");
    return value;
  }
  const bool list = token.is(Token::kOperator, "[");
  if (!list && !token.is(Token::kOperator, "{")) error(format("unexpected '{}'", token.text));
  auto made = node(list ? Expression::kList : Expression::kDict, token.line);
  const char* end = list ? "]" : "}";
  while (!at_operator(end)) {
    if (!made->parts.empty()) expect_operator(",");
    if (at_operator(end)) break;
    add(*made, expression());
    if (list) continue;
    expect_operator(":");
    add(*made, expression());
  }
  expect_operator(end);
  return made;
}

ExpressionPtr Parser::postfix(ExpressionPtr value) {
  while (true) {
    if (at_operator(".")) {
      const int line = take().line;
      const bool number = now().kind == Token::kInteger;
      auto made = node(number ? Expression::kItem : Expression::kAttribute, line);
      add(*made, std::move(value));
      if (number) {
        add(*made, primary());
      } else {
        made->text = name();
      }
      value = std::move(made);
    } else if (at_operator("[")) {
      value = subscript(std::move(value));
    } else if (at_operator("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr value) {
  auto made = node(Expression::kItem, take().line);
  add(*made, std::move(value));
  add(*made, index());
  expect_operator("]");
  return made;
}

ExpressionPtr Parser::call(ExpressionPtr value) {
  auto made = node(Expression::kCall, now().line);
  add(*made, std::move(value));
  arguments(*made);
  return made;
}

ExpressionPtr Parser::index() {
  const int line = now().line;
  ExpressionPtr begin;
  if (!at_operator(":")) begin = expression();
  if (!at_operator(":")) return begin;
  auto made = node(Expression::kSlice, line);
  add(*made, std::move(begin));
  for (int part = 0; part < 2; ++part) {
    ExpressionPtr value;
    if (take_operator(":") && !at_operator(":") && !at_operator("]")) value = expression();
    add(*made, std::move(value));
  }
  return made;
}

// Parses the "(...)" of a call into the node.
void Parser::arguments(Expression& call) {
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (at_operator(")")) break;
    if (take_operator("**")) {
      call.more_named = expression();
    } else if (take_operator("*")) {
      call.more_list = expression();
    } else if (now().kind == Token::kName && peek().is(Token::kOperator, "=")) {
      const std::string key = name();
      take();
      call.named.emplace_back(key, expression());
    } else {
      if (!call.named.empty() || call.more_named)
        error("an argument without a name is behind one with a name");
      add(call, expression());
    }
  }
  expect_operator(")");
}

ExpressionPtr Parser::filters(ExpressionPtr value, bool start_inline) {
  if (start_inline) value = filter(std::move(value));
  while (true) {
    if (take_operator("|")) {
      value = filter(std::move(value));
    } else if (value && at_name("is")) {
      value = test(std::move(value));
    } else if (value && at_operator("(")) {  // the result of a filter or test is called
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::filter(ExpressionPtr value) {
  auto made = node(Expression::kFilter, now().line);
  made->text = name();
  while (take_operator(".")) made->text += "." + name();
  add(*made, std::move(value));
  if (at_operator("(")) arguments(*made);
  return made;
}

ExpressionPtr Parser::test(ExpressionPtr value) {
  const int line = take().line;
  const bool negated = take_name("not");
  auto made = node(Expression::kTest, line);
  made->text = name();
  add(*made, std::move(value));
  const Token& next = now();
  const bool value_follows = next.kind == Token::kString || next.kind == Token::kInteger ||
                             next.kind == Token::kFloat || at_operator("[") || at_operator("{") ||
                             (next.kind == Token::kName && next.text != "else" &&
                              next.text != "or" && next.text != "and" && next.text != "is" &&
                              next.text != "if" && next.text != "in" && next.text != "not");
  if (at_operator("(")) {
    arguments(*made);
  } else if (value_follows) {
    add(*made, postfix(primary()));
  }
  if (!negated) return made;
  auto no = node(Expression::kUnary, line, "not");
  add(*no, std::move(made));
  return no;
}

}  // namespace neap::chat
