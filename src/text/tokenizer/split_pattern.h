// Finds matches of a tokenizer.json pattern in a text, and splits the text at them.
//
// Threads   const calls from any thread.
//
// Failure   neap::Error for a pattern that does not compile or exceeds a limit on a text. Backtracking is
//           bounded, and the Budget limits time and output.
//
// Cost      about 60 MB/s for the patterns of current models.
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

/// How a split treats the matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// A regular expression in the dialect of Hugging Face's tokenizers.
class SplitPattern {
 public:
  /// `where` names the file in errors.
  SplitPattern(std::string_view pattern, std::string_view where);
  /// A pattern that matches `text` literally.
  [[nodiscard]] static SplitPattern literal(std::string_view text, std::string_view where);

  /// Appends matches and the text between them, in order; together they cover the text. Matches may
  /// be empty. Bytes that are not UTF-8 never match.
  void match(std::string_view text, std::vector<MatchPart>& parts, Budget& budget) const;
  /// Appends the non-empty pieces that result from isolating the matches.
  void split(std::string_view text, std::vector<std::string_view>& pieces, Budget& budget) const;
  /// Returns the text with each match replaced by `by`.
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

/// Appends the non-empty pieces of a text after a split with `behavior`. `parts` cover the text.
void split_parts(std::string_view text, const std::vector<MatchPart>& parts, SplitBehavior behavior,
                 std::vector<std::string_view>& pieces);

}  // namespace neap::text
