// The tokens of Jinja2, with trim_blocks and lstrip_blocks as transformers sets them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace neap::chat {

struct Token {
  enum Kind {
    kText,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = kEnd;
  std::string text;
  int line = 0;
  [[nodiscard]] bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
};

/// Tokens of a template, ending with kEnd. Throws TemplateError with the line.
[[nodiscard]] std::vector<Token> tokens_of(std::string_view source);

}  // namespace neap::chat
