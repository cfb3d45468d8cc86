#include "reward/text_cursor.h"

#include "reward/answer.h"
#include "reward/number.h"

namespace neap::reward {

void TextCursor::skip_spaces() {
  while (at_ < text_.size() && text_[at_] == ' ') ++at_;
}

char TextCursor::peek() {
  skip_spaces();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool TextCursor::take(char c) {
  if (peek() != c) return false;
  ++at_;
  return true;
}

bool TextCursor::take_word(std::string_view word) {
  skip_spaces();
  if (!text_.substr(at_).starts_with(word)) return false;
  const std::size_t end = at_ + word.size();
  if (end < text_.size() && is_letter(text_[end])) return false;
  at_ = end;
  return true;
}

std::optional<std::string> TextCursor::name_tail() {
  std::string out;
  if (take('_')) {
    const std::size_t start = at_;
    if (peek() == '{') {
      const std::size_t close = text_.find('}', at_);
      if (close == std::string_view::npos) return std::nullopt;
      for (const char c : text_.substr(at_ + 1, close - at_ - 1)) {
        if (nesting(c) == 1 && c == '{') return std::nullopt;
        if (c != ' ') out += c;
      }
      at_ = close + 1;
    } else {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      if (at_ == start && peek() == '\\') ++at_;
      const bool command = at_ > start && text_[start] == '\\';
      while (at_ < text_.size() && is_letter(text_[at_]) && (command || at_ == start)) ++at_;
      out = text_.substr(start, at_ - start);
    }
    if (out.empty()) return std::nullopt;
    out.insert(0, 1, '_');
  }
  while (at_ < text_.size() && text_[at_] == '\'') out += text_[at_++];
  return out;
}

}  // namespace neap::reward
