// The syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/value.h"

namespace neap::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum Kind {
    kConstant,   ///< value: not a text
    kLiteral,    ///< text
    kName,       ///< text
    kList,       ///< parts
    kTuple,      ///< parts
    kDict,       ///< parts: key, value, key, value ...
    kUnary,      ///< text: "-", "+" or "not"; parts: one
    kBinary,     ///< text: the operator, including "and" and "or"; parts: two
    kCompare,    ///< parts: n + 1, operators: n
    kCondition,  ///< parts: value, test, and the "else" value if present
    kAttribute,  ///< parts: object; text
    kItem,       ///< parts: object, index
    kSlice,      ///< parts: begin, end, step; each may be null
    kFilter,     ///< text; parts: input (null in a filter block), arguments
    kTest,       ///< text; parts: input, arguments
    kCall,       ///< parts: function, arguments
  };
  Kind kind = kConstant;
  int line = 0;
  int height = 1;  ///< levels of the tree, including this node
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  ///< keyword arguments
  ExpressionPtr more_list, more_named;                       ///< *arguments, **arguments
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  ///< null: no "else"
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum Kind {
    kText,         ///< text
    kPrint,        ///< expression
    kIf,           ///< expression, body, otherwise
    kFor,          ///< target, expression, condition, body, otherwise; recursive
    kSet,          ///< target, expression
    kSetBlock,     ///< target, expression (filters) or null, body
    kMacro,        ///< text, parameters, body
    kCallBlock,    ///< expression (a call), parameters, body
    kFilterBlock,  ///< expression (filters), body
    kWith,         ///< assignments, body
    kGeneration,   ///< body
    kBreak,
    kContinue,
  };
  Kind kind = kText;
  int line = 0;
  std::string text;
  ExpressionPtr target, expression, condition;
  std::vector<Parameter> parameters;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Body body, otherwise;
  bool recursive = false;
};

/// Parses a template into statements. Throws TemplateError with the line.
[[nodiscard]] Body parse(std::string_view source);

}  // namespace neap::chat
