#include "text/chat/parser.h"

#include <algorithm>

#include "base/format.h"
#include "base/read_limits.h"

namespace neap::chat {

namespace {
Statement statement_of(Statement::Kind kind, int line) {
  Statement made;
  made.kind = kind;
  made.line = line;
  return made;
}
}  // namespace

Parser::Nesting::Nesting(Parser& p) : parser(p) {
  if (++parser.depth_ > read_limits::kTemplate.levels) {
    --parser.depth_;
    parser.error(limit_text(read_limits::kTemplate, Excess::kLevels));
  }
}

void Parser::error(const std::string& what) const {
  TemplateError e(what);
  e.line = now().line;
  throw e;
}

bool Parser::take_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  take();
  return true;
}
bool Parser::take_name(std::string_view text) {
  if (!at_name(text)) return false;
  take();
  return true;
}
void Parser::expect_operator(std::string_view text) {
  if (!take_operator(text)) error(format("expected '{}', got '{}'", text, now().text));
}
void Parser::expect_name(std::string_view text) {
  if (!take_name(text)) error(format("expected '{}', got '{}'", text, now().text));
}
void Parser::expect_block_end() {
  if (now().kind != Token::kBlockEnd)
    error(format("expected the end of the statement, got '{}'", now().text));
  take();
}
std::string Parser::name() {
  if (now().kind != Token::kName) error(format("expected a name, got '{}'", now().text));
  return take().text;
}

Body Parser::body(const std::vector<std::string_view>& ends) {
  const Nesting nesting(*this);
  Body out;
  while (true) {
    const Token& token = now();
    if (token.kind == Token::kEnd) {
      if (!ends.empty())
        error(format("expected {{% {} %}}, got the end of the template", ends.back()));
      return out;
    }
    if (token.kind == Token::kText) {
      Statement text = statement_of(Statement::kText, token.line);
      text.text = take().text;
      out.push_back(std::move(text));
    } else if (token.kind == Token::kVariableBegin) {
      Statement print = statement_of(Statement::kPrint, take().line);
      print.expression = tuple();
      if (now().kind != Token::kVariableEnd)
        error(format("expected the end of the expression, got '{}'", now().text));
      take();
      out.push_back(std::move(print));
    } else {
      const bool done = peek().kind == Token::kName &&
                        std::find(ends.begin(), ends.end(), peek().text) != ends.end();
      take();  // the opening tag of the block
      if (done) return out;
      out.push_back(statement());
    }
  }
}

Statement Parser::statement() {
  const int line = now().line;
  const std::string tag = name();
  if (tag == "if") return if_statement(line);
  if (tag == "for") return for_statement(line);
  if (tag == "set") return set_statement(line);
  if (tag == "macro") return macro_statement(line);
  if (tag == "call") return call_statement(line);
  if (tag == "filter") return filter_statement(line);
  if (tag == "with") return with_statement(line);
  if (tag == "generation") {
    Statement made = statement_of(Statement::kGeneration, line);
    made.body = block("endgeneration");
    return made;
  }
  if (tag == "break" || tag == "continue") {
    Statement made = statement_of(tag == "break" ? Statement::kBreak : Statement::kContinue, line);
    expect_block_end();
    return made;
  }
  error(format("Encountered unknown tag '{}'", tag));
}

// Reads the rest of the opening tag, and the body up to the end tag.
Body Parser::block(std::string_view end) {
  expect_block_end();
  Body made = body({end});
  expect_name(end);
  expect_block_end();
  return made;
}

Statement Parser::if_statement(int line) {
  const Nesting nesting(*this);
  Statement made = statement_of(Statement::kIf, line);
  made.expression = tuple(false);
  expect_block_end();
  made.body = body({"elif", "else", "endif"});
  const int next = now().line;
  if (take_name("elif")) {
    made.otherwise.push_back(if_statement(next));
    return made;
  }
  if (take_name("else")) {
    expect_block_end();
    made.otherwise = body({"endif"});
  }
  expect_name("endif");
  expect_block_end();
  return made;
}

Statement Parser::for_statement(int line) {
  Statement made = statement_of(Statement::kFor, line);
  made.target = target(false);
  expect_name("in");
  made.expression = tuple(false);
  if (take_name("if")) made.condition = expression();
  made.recursive = take_name("recursive");
  expect_block_end();
  made.body = body({"endfor", "else"});
  if (take_name("else")) {
    expect_block_end();
    made.otherwise = body({"endfor"});
  }
  expect_name("endfor");
  expect_block_end();
  return made;
}

Statement Parser::set_statement(int line) {
  Statement made = statement_of(Statement::kSet, line);
  made.target = target(true);
  if (take_operator("=")) {
    made.expression = tuple();
    expect_block_end();
    return made;
  }
  made.kind = Statement::kSetBlock;
  made.expression = filters(nullptr);
  made.body = block("endset");
  return made;
}

std::vector<Parameter> Parser::parameters() {
  std::vector<Parameter> made;
  expect_operator("(");
  while (!at_operator(")")) {
    if (!made.empty()) expect_operator(",");
    Parameter p;
    p.name = name();
    if (take_operator("=")) {
      p.otherwise = expression();
    } else if (!made.empty() && made.back().otherwise) {
      error("a parameter without a default is behind one with a default");
    }
    made.push_back(std::move(p));
  }
  expect_operator(")");
  return made;
}

Statement Parser::macro_statement(int line) {
  Statement made = statement_of(Statement::kMacro, line);
  made.text = name();
  made.parameters = parameters();
  made.body = block("endmacro");
  return made;
}

Statement Parser::call_statement(int line) {
  Statement made = statement_of(Statement::kCallBlock, line);
  if (at_operator("(")) made.parameters = parameters();
  made.expression = expression();
  if (made.expression->kind != Expression::kCall) error("expected a call");
  made.body = block("endcall");
  return made;
}

Statement Parser::filter_statement(int line) {
  Statement made = statement_of(Statement::kFilterBlock, line);
  made.expression = filters(nullptr, /*start_inline=*/true);
  made.body = block("endfilter");
  return made;
}

Statement Parser::with_statement(int line) {
  Statement made = statement_of(Statement::kWith, line);
  while (now().kind != Token::kBlockEnd) {
    if (!made.assignments.empty()) expect_operator(",");
    ExpressionPtr to = target(false);
    expect_operator("=");
    made.assignments.emplace_back(std::move(to), expression());
  }
  made.body = block("endwith");
  return made;
}

ExpressionPtr Parser::single_target(bool attributes) {
  const int line = now().line;
  if (take_operator("(")) {
    ExpressionPtr made = target(attributes);
    expect_operator(")");
    return made;
  }
  std::string id = name();
  if (attributes && take_operator(".")) {
    auto made = node(Expression::kAttribute, line, name());
    made->parts.push_back(node(Expression::kName, line, std::move(id)));
    return made;
  }
  return node(Expression::kName, line, std::move(id));
}

ExpressionPtr Parser::target(bool attributes) {
  const Nesting nesting(*this);
  const int line = now().line;
  ExpressionPtr first = single_target(attributes);
  if (!at_operator(",")) return first;
  auto made = node(Expression::kTuple, line);
  made->parts.push_back(std::move(first));
  while (take_operator(",")) {
    if (at_name("in") || at_operator("=") || at_operator(")")) break;
    made->parts.push_back(single_target(attributes));
  }
  return made;
}

Body parse(std::string_view source) {
  return Parser(tokens_of(source)).body({});
}

}  // namespace neap::chat
