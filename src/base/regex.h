// Regular expressions with bounds on the work of one search.
//
// Threads   const functions from any thread, each thread with a Finds of its own.
//
// Failure   kInvalidArgument for an expression that does not compile: why, and at which character. kUnsupported in a
//           build without PCRE2.
//
// Cost      compiled once, to machine code where the processor allows. A search that takes more than its limits gives
//           up.
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
    bool whole_text = false;  ///< a match is the whole text
    bool unicode = true;      ///< \w, \d, \s and \b know all of Unicode, not only ASCII
    bool multiline = false;   ///< ^ and $ match at each line
    /// Every text is UTF-8; that is not checked. Otherwise bytes that are not UTF-8 match nothing.
    bool valid_utf8 = false;
    std::uint32_t step_limit = 10'000'000;
    Bytes memory_limit = 64_MiB;
    Bytes memory_of_byte{0};  ///< more memory for each byte of the text
  };
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern, const Options& options);

  enum class Outcome { kFound, kNone, kGaveUp };
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  /// What a search found, for one search after the other.
  class Finds {
   public:
    Finds();
    Finds(const Finds&) = delete;
    Finds& operator=(const Finds&) = delete;
    ~Finds();
    /// The whole match.
    [[nodiscard]] Range match() const { return {ends_[0], ends_[1]}; }
    /// The first group; the whole match where the expression has no group; nothing where the group took no part.
    [[nodiscard]] std::optional<Range> first_group() const;
    /// Why the search gave up.
    [[nodiscard]] std::string reason() const;

   private:
    friend class Regex;
    void* data_;               // of PCRE2
    void* limits_;             // of PCRE2
    const std::size_t* ends_;  // in it: begin and end of the match, then of the group
    bool has_group_ = false;
    int result_ = 0;
  };
  /// The first match that begins at `from` or behind it.
  [[nodiscard]] Outcome search(std::string_view text, std::size_t from, Finds& finds) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace neap
