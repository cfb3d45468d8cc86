#include "reward/number.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace neap::reward {
namespace {

constexpr std::size_t kMaxDigits = 4096;
constexpr int kMaxExponent = 400;

std::size_t digits_at(std::string_view text, std::size_t from) {
  std::size_t end = from;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - from;
}

// Length of the digits at `from`, which may have commas between groups of three.
std::size_t whole_part_at(std::string_view text, std::size_t from) {
  std::size_t length = digits_at(text, from);
  if (length == 0 || length > 3) return length;
  while (from + length < text.size() && text[from + length] == ',' &&
         digits_at(text, from + length + 1) == 3)
    length += 4;
  return length;
}

// Length of the number at `from`, without sign and exponent; 0 if there is none.
std::size_t number_at(std::string_view text, std::size_t from) {
  std::size_t length = whole_part_at(text, from);
  if (from + length < text.size() && text[from + length] == '.') {
    const std::size_t fraction = digits_at(text, from + length + 1);
    if (fraction > 0) length += 1 + fraction;
  }
  return length;
}

// The first number that begins at or after `from`.
std::optional<std::string_view> number_from(std::string_view text, std::size_t from) {
  for (std::size_t at = from; at < text.size(); ++at) {
    const std::size_t length = number_at(text, at);
    const bool inside = text[at] == '.' && at > 0 && is_digit(text[at - 1]);  // inside of 1.2.3
    if (length == 0 || inside) continue;
    if (at == from || text[at - 1] != '-') return text.substr(at, length);
    const char before = at > 1 ? text[at - 2] : ' ';
    const bool minus = !is_digit(before) && !is_letter(before) && before != ')' && before != ']';
    return minus ? text.substr(at - 1, length + 1) : text.substr(at, length);
  }
  return std::nullopt;
}

std::string without_commas(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != ','; });
  return out;
}

// Combines "12", "345" and an exponent into one decimal number.
std::string placed(std::string_view whole, std::string_view fraction, int exponent) {
  constexpr std::size_t kPad = kMaxExponent;
  std::string digits(kPad, '0');
  digits.append(whole).append(fraction).append(kPad, '0');
  const std::size_t point = whole.size() + static_cast<std::size_t>(kMaxExponent + exponent);
  const std::size_t first = std::min(digits.find_first_not_of('0'), point);
  const std::size_t last = std::max(digits.find_last_not_of('0') + 1, point);
  std::string out = first < point ? digits.substr(first, point - first) : std::string(1, '0');
  if (last > point) out.append(1, '.').append(digits, point, last - point);
  return out;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n\f\v");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n\f\v") - first + 1);
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::optional<std::string> canonical_decimal(std::string_view text) {
  if (text.size() > kMaxDigits) return std::nullopt;
  const bool negative = !text.empty() && text.front() == '-';
  if (negative || (!text.empty() && text.front() == '+')) text.remove_prefix(1);
  const std::size_t whole = whole_part_at(text, 0);
  std::size_t at = whole;
  std::string_view fraction;
  if (at < text.size() && text[at] == '.') {
    fraction = text.substr(at + 1, digits_at(text, at + 1));
    at += 1 + fraction.size();
  }
  if (whole == 0 && fraction.empty()) return std::nullopt;
  int exponent = 0;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::string_view digits = text.substr(at + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() ||
        exponent > kMaxExponent || exponent < -kMaxExponent)
      return std::nullopt;
    at = text.size();
  }
  if (at != text.size()) return std::nullopt;
  std::string out = placed(without_commas(text.substr(0, whole)), fraction, exponent);
  if (negative && out != "0") out.insert(out.begin(), '-');
  return out;
}

std::optional<std::string_view> last_number(std::string_view text) {
  std::optional<std::string_view> last;
  std::size_t from = 0;
  while (const auto next = number_from(text, from)) {
    last = next;
    from = static_cast<std::size_t>(next->data() + next->size() - text.data());
  }
  return last;
}

}  // namespace neap::reward
