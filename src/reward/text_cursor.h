// A place in a text of mathematics, and the words and names that are read there.
//
// Threads   one at a time.   Failure   none.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace neap::reward {

class TextCursor {
 protected:
  explicit TextCursor(std::string_view text) : text_(text) {}

  void skip_spaces();
  /// The next character that is no space; '\0' at the end.
  [[nodiscard]] char peek();
  bool take(char c);
  /// A whole word: "\pi" is not the beginning of "\pink".
  bool take_word(std::string_view word);
  /// What follows a name as a part of it: "_1", "_{AB}", "'". nullopt: a subscript that is none.
  std::optional<std::string> name_tail();

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace neap::reward
