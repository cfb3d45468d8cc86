// Regular expressions with bounds on the work of one search.
//
// Threads   const functions from any thread, if each thread has its own Finds.
//
// Failure   kInvalidArgument with reason and position for an expression that does not compile, and
//           for a search over its limits. kUnsupported in a build without PCRE2.
//
// Cost      compiled once, to machine code if the processor allows. A search over its limits ends.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/read_limits.h"
#include "base/status.h"
#include "base/text.h"

namespace neap {

/// A regular expression as messages have it: quoted, and cut if it is long.
[[nodiscard]] inline std::string quoted_pattern(std::string_view pattern) {
  constexpr std::size_t kShown = 100;
  return '"' + excerpt(pattern, kShown) + '"';
}

class Regex {
 public:
  struct Options {
    bool whole_text = false;  ///< a match must be the whole text
    bool unicode = true;      ///< \w, \d, \s and \b cover all of Unicode, not only ASCII
    bool multiline = false;   ///< ^ and $ match at each line
    /// The caller ensures that every text is UTF-8. If false, bytes that are not UTF-8 match
    /// nothing.
    bool valid_utf8 = false;
    /// No \G and no verb such as (*COMMIT): a search may be made in spans, which limits its time.
    bool divisible = true;
  };
  /// `limits` of one search: steps from one start, memory, and processor time. They outlive the
  /// Regex.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern, const ReadLimits& limits,
                                             const Options& options);

  enum class Outcome { kFound, kNone, kFailed };
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  /// Result of a search; reusable for the next search.
  class Finds {
   public:
    Finds();
    Finds(const Finds&) = delete;
    Finds& operator=(const Finds&) = delete;
    ~Finds();
    /// The whole match.
    [[nodiscard]] Range match() const { return {ends_[0], ends_[1]}; }
    /// The first group, or the whole match if the expression has no group. Nothing if the group did
    /// not take part.
    [[nodiscard]] std::optional<Range> first_group() const;
    /// Why the search failed: "WHERE takes over the limit of ...".
    [[nodiscard]] Status failure(std::string_view where) const;

   private:
    friend class Regex;
    void* data_;               // owned by PCRE2
    void* context_;            // owned by PCRE2
    const std::size_t* ends_;  // points into data_: begin and end of the match, then of the group
    bool has_group_ = false;
    int result_ = 0;
    const ReadLimits* limits_ = nullptr;
    std::size_t bytes_ = 0;  // of the text
  };
  /// Finds the first match that begins at or after `from`.
  [[nodiscard]] Outcome search(std::string_view text, std::size_t from, Finds& finds) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace neap
