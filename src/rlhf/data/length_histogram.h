// A histogram of the lengths in tokens of a data file's texts. It is counted while the file is
// encoded, stored in the notes of its rows, and logged before training.
//
// Threads   stateless functions.
// Cost      a look-up per text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/encode_files.h"

namespace neap::rlhf {

/// The kind of a text and its length limit.
struct LimitedText {
  std::string kind;  ///< "prompt", "response", "chosen", "rejected"
  std::int64_t most = 0;
};
/// Counts a text of `tokens` tokens from the row at `where`.
void count_length(const LimitedText& text, std::int64_t tokens, const std::string& where,
                  data::EncodedRows& out);

/// Texts of one kind that exceed their limit.
struct Overlong {
  std::uint64_t count = 0;
  std::int64_t longest = 0;  ///< longest text, in tokens
  std::string first;         ///< location and length of the first one
};
/// nullopt if no text exceeds its limit.
[[nodiscard]] std::optional<Overlong> overlong(const Json& notes, const std::string& kind);

/// A table with one line per kind of text and doubling of the length.
[[nodiscard]] std::string lengths_text(const Json& notes, std::int64_t prompt_limit,
                                       std::int64_t response_limit);

}  // namespace neap::rlhf
