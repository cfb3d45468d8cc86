// Regular expressions with bounds on the work of one search.
//
// Threads   const functions from any thread, if each thread has its own Finds.
//
// Failure   kInvalidArgument with reason and position for an expression that does not compile.
//           kUnsupported in a build without PCRE2.
//
// Cost      compiled once, to machine code if the processor allows. A search that exceeds its
//           limits gives up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace neap {

class Regex {
 public:
  struct Options {
    bool whole_text = false;  ///< a match must be the whole text
    bool unicode = true;      ///< \w, \d, \s and \b cover all of Unicode, not only ASCII
    bool multiline = false;   ///< ^ and $ match at each line
    /// The caller ensures that every text is UTF-8. If false, bytes that are not UTF-8 match
    /// nothing.
    bool valid_utf8 = false;
    std::uint32_t step_limit = 10'000'000;
    Bytes memory_limit = 64_MiB;
    Bytes memory_of_byte{0};  ///< additional memory per byte of the text
  };
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern, const Options& options);

  enum class Outcome { kFound, kNone, kGaveUp };
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
    /// Why the search gave up.
    [[nodiscard]] std::string reason() const;

   private:
    friend class Regex;
    void* data_;               // owned by PCRE2
    void* limits_;             // owned by PCRE2
    const std::size_t* ends_;  // points into data_: begin and end of the match, then of the group
    bool has_group_ = false;
    int result_ = 0;
  };
  /// Finds the first match that begins at or after `from`.
  [[nodiscard]] Outcome search(std::string_view text, std::size_t from, Finds& finds) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace neap
