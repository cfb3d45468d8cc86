// Prompts of `neap generate`, one at a time: texts of the command line, lines of standard input,
// rows of a file.
//
// Threads   one at a time.
//
// Failure   neap::Error that names the option, line or row.
//
// Memory    one row of the file.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/row_source.h"
#include "text/chat/conversation.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::cli {

struct Request {
  Json prompt;  ///< a text, or a conversation for the chat template
  Json tools;   ///< tools for the chat template; null: none
  std::vector<text::TokenId> tokens;
  std::string where;  ///< "--prompt 2", "prompts.jsonl:7"
};

struct PromptOptions {
  std::vector<std::string> texts;
  std::istream* lines = nullptr;
  std::string file;
  bool chat = false;  ///< texts are user messages
};

class PromptSource {
 public:
  /// `options` and `tokenizer` outlive the source.
  PromptSource(const PromptOptions& options, const text::Tokenizer& tokenizer);
  /// Reads the next prompt. False at the end.
  bool next(Request& request);
  /// Number of empty lines of standard input skipped so far.
  [[nodiscard]] std::size_t empty_lines() const { return empty_lines_; }

 private:
  [[nodiscard]] bool read(Request& request);
  [[nodiscard]] Result<bool> read_row(Request& request);
  [[nodiscard]] Json prompt_of(const std::string& text) const;
  void encode(Request& request);

  const PromptOptions& options_;
  const text::Tokenizer& tokenizer_;
  std::optional<chat::Conversations> conversations_;
  std::unique_ptr<data::RowSource> rows_;
  std::size_t texts_ = 0, lines_ = 0, empty_lines_ = 0;  // counts of inputs read so far
};

}  // namespace neap::cli
