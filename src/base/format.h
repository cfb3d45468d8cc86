// format("{} of {}", a, b): the syntax of fmt without its headers.
//
// One function in format.cpp receives the arguments as one of a few types. Only that file compiles
// fmt. Instantiating fmt in every file took most of the build time. torch also ships another
// version of fmt, whose symbols must not be mixed with these.
//
// Threads   no shared state.
// Failure   a wrong format string does not compile. Throws std::bad_alloc.
// Cost      one allocation for the text; 16 to 24 bytes of stack per argument.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/bytes.h"

namespace neap {
namespace detail {

using FormatArg = std::variant<bool, char, std::int64_t, std::uint64_t, float, double,
                               std::string_view, const void*, Bytes>;
enum class FormatKind : std::uint8_t { kInteger, kFloat, kText, kPointer };

template <class T>
consteval FormatKind format_kind() {
  if constexpr (std::is_floating_point_v<T>) return FormatKind::kFloat;
  if constexpr (std::is_same_v<T, Bytes> || std::is_convertible_v<const T&, std::string_view>)
    return FormatKind::kText;
  if constexpr (std::is_pointer_v<T>) return FormatKind::kPointer;
  return FormatKind::kInteger;
}

template <class T>
FormatArg format_arg(const T& value) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, char> || std::is_same_v<T, float> ||
                std::is_same_v<T, Bytes>) {
    return value;
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::string_view(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return static_cast<const void*>(value);
  } else {
    static_assert(std::is_integral_v<T>, "format() takes numbers, text, pointers and Bytes");
    if constexpr (std::is_signed_v<T>) return static_cast<std::int64_t>(value);
    if constexpr (std::is_unsigned_v<T>) return static_cast<std::uint64_t>(value);
  }
}

/// Checks a format string at compile time. wrong() is not constexpr, so reaching it is a compile
/// error.
class FormatCheck {
 public:
  consteval FormatCheck(std::string_view text, std::span<const FormatKind> arguments)
      : text_(text), arguments_(arguments) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c != '{' && c != '}') continue;
      if (peek() == c) {
        ++at_;
      } else if (c == '{') {
        field();
      } else {
        wrong("a } without its {; write }} for the character");
      }
    }
    if (!by_number_ && next_ != arguments_.size()) wrong("more arguments than {}");
  }

 private:
  static void wrong(const char* why);
  [[nodiscard]] consteval char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  consteval FormatKind argument() {
    std::size_t index = 0;
    if (peek() >= '0' && peek() <= '9') {
      by_number_ = true;
      while (peek() >= '0' && peek() <= '9')
        index = index * 10 + static_cast<std::size_t>(text_[at_++] - '0');
    } else {
      index = next_++;
    }
    if (index >= arguments_.size()) wrong("more {} than arguments");
    return arguments_[index];
  }
  consteval void field() {
    const FormatKind kind = argument();
    char type = '\0';
    if (peek() == ':') {
      for (++at_; peek() != '}' && peek() != '\0';) {
        type = text_[at_++];
        if (type != '{') continue;
        if (argument() != FormatKind::kInteger) wrong("a width or precision is an integer");
        if (peek() != '}') wrong("a { without its }");
        ++at_;
      }
    }
    if (peek() != '}') wrong("a { without its }");
    ++at_;
    const auto one_of = [type](std::string_view types) {
      return types.find(type) != std::string_view::npos;
    };
    if (one_of("aAeEfFgG") && kind != FormatKind::kFloat) wrong("this type needs a float");
    if (one_of("bBdoxXc") && kind != FormatKind::kInteger) wrong("this type needs an integer");
    if (one_of("s") && kind != FormatKind::kText) wrong("this type needs text");
  }

  std::string_view text_;
  std::span<const FormatKind> arguments_;
  std::size_t at_ = 0, next_ = 0;
  bool by_number_ = false;
};

template <class... Args>
class CheckedFormat {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal becomes one where it is passed.
  template <std::convertible_to<std::string_view> Text>
  consteval CheckedFormat(const Text& text) : text_(text) {
    constexpr std::array<FormatKind, sizeof...(Args)> kKinds{format_kind<Args>()...};
    (void)FormatCheck(text_, kKinds);
  }
  [[nodiscard]] constexpr std::string_view get() const { return text_; }

 private:
  std::string_view text_;
};

[[nodiscard]] std::string vformat(std::string_view text, std::span<const FormatArg> arguments);

}  // namespace detail

/// A format string for these arguments, for functions that pass it on to format().
template <class... Args>
using FormatString = detail::CheckedFormat<std::type_identity_t<std::remove_cvref_t<Args>>...>;

/// An object instead of a function, so that argument-dependent lookup does not also find
/// std::format for a std::string argument.
struct Format {
  template <class... Args>
  [[nodiscard]] std::string operator()(FormatString<Args...> text, const Args&... args) const {
    const std::array<detail::FormatArg, sizeof...(Args)> list{detail::format_arg(args)...};
    return detail::vformat(text.get(), list);
  }
};
inline constexpr Format format{};

}  // namespace neap
