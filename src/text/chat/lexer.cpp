#include "text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/format.h"
#include "text/chat/value.h"
#include "text/tokenizer/utf8.h"

namespace neap::chat {
namespace {

namespace utf8 = text::utf8;

// Converts "\r\n" and "\r" to "\n" and removes one line break at the end.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_lines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const std::size_t at = find_begin();
      if (at == std::string_view::npos) {
        text(rest_);
        advance(rest_.size());
        break;
      }
      open(at);
    }
    add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    TemplateError e(what);
    e.line = line_;
    throw e;
  }
  void add(Token::Kind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line_});
  }
  void advance(std::size_t n) {
    line_ += static_cast<int>(
        std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(n), '\n'));
    rest_.remove_prefix(n);
  }
  void skip_space() { advance(utf8::leading_space(rest_)); }
  void text(std::string_view data) {
    if (!data.empty()) add(Token::kText, std::string(data));
  }
  [[nodiscard]] std::size_t find_begin() const {
    for (std::size_t at = 0; (at = rest_.find('{', at)) != std::string_view::npos; ++at) {
      if (at + 1 < rest_.size() &&
          (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#'))
        return at;
    }
    return std::string_view::npos;
  }

  /// Adds the text before a tag, without the white space that the tag strips.
  void text_before(std::size_t at, char sign, bool is_variable) {
    std::string_view data = rest_.substr(0, at);
    if (sign == '-') {
      data.remove_suffix(utf8::trailing_space(data));
    } else if (sign != '+' && !is_variable) {
      const std::size_t line = data.rfind('\n') + 1;  // 0 without a line break
      const std::string_view before = data.substr(line);
      if ((line > 0 || line_starting_) && utf8::leading_space(before) == before.size())
        data = data.substr(0, line);
    }
    text(data);
    advance(at);
  }

  void open(std::size_t at) {
    const char kind = rest_[at + 1];
    const char sign = at + 2 < rest_.size() ? rest_[at + 2] : ' ';
    const bool has_sign = sign == '-' || (sign == '+' && kind != '{');
    text_before(at, has_sign ? sign : ' ', kind == '{');
    advance(has_sign ? 3 : 2);
    if (kind == '#') {
      comment();
    } else if (kind == '%' && raw()) {
      return;
    } else {
      add(kind == '{' ? Token::kVariableBegin : Token::kBlockBegin, "");
      expression(kind == '{' ? '}' : '%');
    }
  }

  /// Call at the last part of a closing tag. Strips the white space after the tag.
  void close(std::size_t tag_bytes, char sign, bool trims_line) {
    advance(tag_bytes);
    line_starting_ = false;
    if (sign == '-') {
      const std::size_t n = utf8::leading_space(rest_);
      line_starting_ = n > 0 && rest_[n - 1] == '\n';
      advance(n);
    } else if (sign != '+' && trims_line && rest_.starts_with('\n')) {
      advance(1);
      line_starting_ = true;
    }
  }

  void comment() {
    const std::size_t end = rest_.find("#}");
    if (end == std::string_view::npos) error("Missing end of comment tag");
    const char sign = end > 0 ? rest_[end - 1] : ' ';
    close(end + 2, sign, true);
  }

  /// Reads {% raw %}: text up to {% endraw %}.
  bool raw() {
    std::string_view look = rest_;
    look.remove_prefix(utf8::leading_space(look));
    if (!look.starts_with("raw")) return false;
    look.remove_prefix(3);
    look.remove_prefix(utf8::leading_space(look));
    const bool minus = look.starts_with("-%}");
    if (!minus && !look.starts_with("%}")) return false;
    advance(rest_.size() - look.size());
    close(minus ? 3 : 2, minus ? '-' : ' ', true);
    for (std::size_t at = 0; (at = rest_.find("{%", at)) != std::string_view::npos; at += 2) {
      std::string_view tag = rest_.substr(at + 2);
      const char sign = tag.empty() ? ' ' : tag.front();
      if (sign == '-' || sign == '+') tag.remove_prefix(1);
      tag.remove_prefix(utf8::leading_space(tag));
      if (!tag.starts_with("endraw")) continue;
      tag.remove_prefix(6);
      tag.remove_prefix(utf8::leading_space(tag));
      const char end = tag.empty() ? ' ' : tag.front();
      if (end == '-' || end == '+') tag.remove_prefix(1);
      if (!tag.starts_with("%}")) continue;
      const std::size_t after = rest_.size() - tag.size();
      text_before(at, sign, false);
      close(after - at + 2, end, true);
      return true;
    }
    error("Missing end of raw directive");
  }

  void expression(char closing) {
    const std::string close_tag = std::string(1, closing) + "}";
    std::string brackets;
    while (true) {
      skip_space();
      if (rest_.empty()) error("Unexpected end of template");
      const bool minus =
          rest_.size() > 2 && rest_[0] == '-' && rest_.substr(1).starts_with(close_tag);
      const bool plus = closing == '%' && rest_.starts_with("+%}");
      if (brackets.empty() && (minus || plus || rest_.starts_with(close_tag))) {
        add(closing == '}' ? Token::kVariableEnd : Token::kBlockEnd, "");
        close(minus || plus ? 3 : 2, minus ? '-' : plus ? '+' : ' ', closing == '%');
        return;
      }
      const char c = rest_.front();
      if (c == '\'' || c == '"') {
        string(c);
      } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        number();
      } else if (c == '_' || std::isalpha(static_cast<unsigned char>(c)) != 0 ||
                 static_cast<unsigned char>(c) >= 0x80) {
        name();
      } else {
        operation(brackets);
      }
    }
  }

  void name() {
    std::size_t n = 0;
    while (n < rest_.size() &&
           (rest_[n] == '_' || std::isalnum(static_cast<unsigned char>(rest_[n])) != 0 ||
            static_cast<unsigned char>(rest_[n]) >= 0x80))
      ++n;
    add(Token::kName, std::string(rest_.substr(0, n)));
    advance(n);
  }

  void number() {
    const auto digits = [&](std::size_t from) {
      while (from < rest_.size() &&
             (std::isdigit(static_cast<unsigned char>(rest_[from])) != 0 || rest_[from] == '_'))
        ++from;
      return from;
    };
    std::size_t n = digits(0);
    Token::Kind kind = Token::kInteger;
    if (n + 1 < rest_.size() && rest_[n] == '.' &&
        std::isdigit(static_cast<unsigned char>(rest_[n + 1])) != 0) {
      n = digits(n + 1);
      kind = Token::kFloat;
    }
    if (n < rest_.size() && (rest_[n] == 'e' || rest_[n] == 'E')) {
      const std::size_t sign =
          n + 1 < rest_.size() && (rest_[n + 1] == '+' || rest_[n + 1] == '-') ? 1 : 0;
      const std::size_t end = digits(n + 1 + sign);
      if (end > n + 1 + sign) {
        n = end;
        kind = Token::kFloat;
      }
    }
    std::string value(rest_.substr(0, n));
    std::erase(value, '_');
    add(kind, std::move(value));
    advance(n);
  }

  // Reads Python's escapes. An unknown escape keeps its backslash.
  void string(char quote) {
    std::string out;
    std::size_t i = 1;
    for (; i < rest_.size() && rest_[i] != quote; ++i) {
      if (rest_[i] != '\\' || i + 1 == rest_.size()) {
        out += rest_[i];
        continue;
      }
      i = escape(i + 1, out);
    }
    if (i >= rest_.size()) error("A string does not end");
    add(Token::kString, std::move(out));
    advance(i + 1);
  }

  /// Appends the character of the escape at `i` and returns the escape's last position.
  std::size_t escape(std::size_t i, std::string& out) {
    const char c = rest_[i];
    static constexpr std::string_view kLetters = "nrtabfv\\'\"", kValues = "\n\r\t\a\b\f\v\\'\"";
    if (const std::size_t k = kLetters.find(c); k != std::string_view::npos) {
      out += kValues[k];
      return i;
    }
    if (c == '\n') return i;
    const auto code = [&](std::size_t from, std::size_t length, int base) -> std::int32_t {
      std::int32_t value = 0;
      for (std::size_t k = from; k < from + length; ++k) {
        const int digit =
            k < rest_.size() && std::isxdigit(static_cast<unsigned char>(rest_[k])) != 0
                ? std::isdigit(static_cast<unsigned char>(rest_[k])) != 0
                      ? rest_[k] - '0'
                      : std::tolower(rest_[k]) - 'a' + 10
                : 99;
        if (digit >= base || value > 0x10ffff) error("A string has a bad escape");
        value = value * base + digit;
      }
      if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        error("A string has a bad escape");
      return value;
    };
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      utf8::append(out, code(i + 1, length, 16));
      return i + length;
    }
    if (c >= '0' && c <= '7') {
      std::size_t n = 1;
      while (n < 3 && i + n < rest_.size() && rest_[i + n] >= '0' && rest_[i + n] <= '7') ++n;
      utf8::append(out, code(i, n, 8));
      return i + n - 1;
    }
    out += '\\';
    out += c;
    return i;
  }

  void operation(std::string& brackets) {
    static constexpr std::array kOperators = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "*",
                                              "/",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                              ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!rest_.starts_with(op)) continue;
      const char c = op.front();
      if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (brackets.empty() || brackets.back() != c) error(format("unexpected '{}'", c));
        brackets.pop_back();
      }
      add(Token::kOperator, std::string(op));
      advance(op.size());
      return;
    }
    error(format("unexpected char '{}'", rest_.substr(0, utf8::front(rest_).bytes)));
  }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starting_ = true;  // the previous tag ended with a line break
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace neap::chat
