// Internal to parse(). Statements are in parser.cpp, expressions in expression_parser.cpp.
#pragma once

#include <string_view>
#include <vector>

#include "text/chat/ast.h"
#include "text/chat/lexer.h"

namespace neap::chat {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  /// Reads up to a tag in `ends`. If `ends` is empty, reads to the end of the template and fails on
  /// other tags.
  Body body(const std::vector<std::string_view>& ends);

 private:
  /// Counts the nesting depth during its lifetime.
  struct Nesting {
    explicit Nesting(Parser& p);
    ~Nesting() { --parser.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Parser& parser;
  };

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  [[nodiscard]] bool at_operator(std::string_view text) const {
    return now().is(Token::kOperator, text);
  }
  [[nodiscard]] bool at_name(std::string_view text) const { return now().is(Token::kName, text); }
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  void expect_block_end();
  std::string name();
  [[noreturn]] void error(const std::string& what) const;
  [[nodiscard]] static ExpressionPtr node(Expression::Kind kind, int line, std::string text = {});

  void add(Expression& to, ExpressionPtr part) const;

  Statement statement();
  Statement if_statement(int line);
  Statement for_statement(int line);
  Statement set_statement(int line);
  Statement macro_statement(int line);
  Statement call_statement(int line);
  Statement filter_statement(int line);
  Statement with_statement(int line);
  std::vector<Parameter> parameters();
  Body block(std::string_view end);
  ExpressionPtr target(bool attributes);
  ExpressionPtr single_target(bool attributes);

  ExpressionPtr tuple(bool condition = true, bool parentheses = false);
  ExpressionPtr expression(bool condition = true);
  ExpressionPtr condition();
  /// Reads operands separated by `word`, from left to right.
  [[nodiscard]] ExpressionPtr chain(const char* word, ExpressionPtr (Parser::*operand)());
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr left_associative(const std::vector<std::string_view>& operators, int level);
  ExpressionPtr arithmetic(int level);
  ExpressionPtr unary(bool filters = true);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr filters(ExpressionPtr value, bool start_inline = false);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value);
  ExpressionPtr index();
  void arguments(Expression& call);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace neap::chat
