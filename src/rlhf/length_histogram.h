// Lengths of a data file's texts in tokens: counted while it is encoded, kept in the notes of its rows,
// shown before training.
//
// Threads   functions without shared state.   Cost   a look-up a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/encode_files.h"

namespace neap::rlhf {

/// A text of a row: which one, and how long it may be.
struct LimitedText {
  std::string kind;  ///< "prompt", "response", "chosen", "rejected"
  std::int64_t most = 0;
};
/// Counts a text of `tokens` tokens in the row at `where`.
void count_length(const LimitedText& text, std::int64_t tokens, const std::string& where,
                  data::EncodedRows& out);

/// What is known of a kind of text over its limit.
struct Overlong {
  std::uint64_t count = 0;
  std::int64_t longest = 0;  ///< tokens, of all texts
  std::string first;         ///< where the first one is, and its tokens
};
/// nullopt: none is over its limit.
[[nodiscard]] std::optional<Overlong> overlong(const Json& notes, const std::string& kind);

/// Each kind of text with a line for each doubling of the length, in whole lines.
[[nodiscard]] std::string lengths_text(const Json& notes, std::int64_t prompt_limit,
                                       std::int64_t response_limit);

}  // namespace neap::rlhf
