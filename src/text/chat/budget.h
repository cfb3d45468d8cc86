// Limits of one rendering. Strings and vectors of this header allocate from a Budget and require
// one, so that every value of a template is counted.
//
// Threads   one. A Budget outlives the objects made with it.
//
// Failure   TemplateError; containers keep their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/budget.h"

namespace neap::chat {

/// The exception that ends a rendering; the interpreter adds the line. It never leaves the module.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  int line = 0;  ///< 0: not set yet
};
/// Throws a TemplateError; `what` is cut at 4 KiB.
[[noreturn]] void fail(std::string_view what);

/// Limits of one rendering.
inline constexpr const ReadLimits& kLimits = read_limits::kRendering;
/// Fails for a text that is longer than kLimits.part.
void check_length(std::size_t bytes);
/// Fails for `what` that nests deeper than kLimits.levels.
void check_levels(int levels, std::string_view what);
/// Fail function of a rendering's Budget.
void fail_rendering(std::string_view what);

using String = std::basic_string<char, std::char_traits<char>, Counted<char>>;
template <class T>
using Vector = std::vector<T, Counted<T>>;

/// Immutable characters. Copies and substrings share them.
class Text {
 public:
  Text() = default;
  /// Refers to characters that outlive the rendering: a literal, the template's source, the
  /// caller's JSON.
  static Text outside(std::string_view characters) {
    Text made;
    made.view_ = characters;
    return made;
  }
  static Text copy(std::string_view characters, Budget& budget) {
    return characters.empty() ? Text() : Text(String(characters, budget));
  }
  Text(String made);  // NOLINT(google-explicit-constructor)
  [[nodiscard]] Text part(std::size_t begin, std::size_t bytes = std::string_view::npos) const {
    Text made = *this;
    made.view_ = view_.substr(begin, bytes);
    return made;
  }
  [[nodiscard]] std::string_view view() const { return view_; }
  operator std::string_view() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::size_t size() const { return view_.size(); }
  [[nodiscard]] bool empty() const { return view_.empty(); }
  friend bool operator<(const Text& a, const Text& b) { return a.view_ < b.view_; }
  friend bool operator<(const Text& a, std::string_view b) { return a.view_ < b; }
  friend bool operator<(std::string_view a, const Text& b) { return a < b.view_; }

 private:
  std::string_view view_;
  std::shared_ptr<const String> owner_;  // null: characters from outside
};

}  // namespace neap::chat
