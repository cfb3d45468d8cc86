// Places in a text where a pattern of tokenizer.json matches, and the pieces that a split there
// leaves.
//
// Threads   const calls from any thread.
// Failure   neap::Error: a pattern that does not compile, or that gives up on a text (backtracking
//           is bounded, and the Budget pays for time and for what is written).
// Cost      some 60 MB/s for the patterns of current models.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/budget.h"

namespace neap::text {

/// GPT-2's pattern, which ByteLevel uses.
extern const char* const kGpt2Pattern;

/// A part of a text that matched, or the text between two matches.
struct MatchPart {
  std::size_t begin, end;
  bool match;
};

/// What becomes of the matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// A regular expression in the dialect of Hugging Face's tokenizers.
class SplitPattern {
 public:
  /// `where` names the file in errors.
  SplitPattern(std::string_view pattern, std::string_view where);
  /// Of a text that stands for itself.
  [[nodiscard]] static SplitPattern literal(std::string_view text, std::string_view where);

  /// Appends matches and what is between them, in order; they cover the text. Matches may be empty.
  /// Bytes that are not UTF-8 never match.
  void match(std::string_view text, std::vector<MatchPart>& parts, Budget& budget) const;
  /// Appends the pieces that isolating the matches leaves, none empty.
  void split(std::string_view text, std::vector<std::string_view>& pieces, Budget& budget) const;
  /// The text with each match replaced.
  [[nodiscard]] std::string replace(std::string_view text, std::string_view by,
                                    Budget& budget) const;

 private:
  template <class Found>
  void for_each_match(std::string_view text, Budget& budget, Found&& found) const;
  template <class Found>
  void for_each_match_in_utf8(std::string_view text, Budget& budget, Found&& found) const;
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// Appends the pieces that a split with `behavior` leaves of a text, none empty. `parts` cover it.
void split_parts(std::string_view text, const std::vector<MatchPart>& parts, SplitBehavior behavior,
                 std::vector<std::string_view>& pieces);

}  // namespace neap::text
