// A position in a mathematical text, with functions to read words and names there.
//
// Threads   one at a time.
//
// Failure   none.
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
  /// The next character that is not a space; '\0' at the end.
  [[nodiscard]] char peek();
  bool take(char c);
  /// Takes a whole word: "\pi" does not match "\pink".
  bool take_word(std::string_view word);
  /// Reads what belongs to a name: "_1", "_{AB}", "'". nullopt: the subscript is not valid.
  std::optional<std::string> name_tail();

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace neap::reward
