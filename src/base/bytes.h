// Sizes in bytes as a separate type, and their text form.
//
// Threads   values without shared state.
// Failure   parsing returns Result; arithmetic is unchecked except where a function says so.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace neap {

/// A non-negative number of bytes. For differences use saturating_sub, or check first.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : count_(count) {}

  [[nodiscard]] constexpr std::uint64_t count() const { return count_; }
  [[nodiscard]] constexpr bool is_zero() const { return count_ == 0; }
  [[nodiscard]] constexpr double mib() const { return static_cast<double>(count_) / (1 << 20); }
  [[nodiscard]] constexpr double gib() const { return static_cast<double>(count_) / (1 << 30); }

  constexpr Bytes& operator+=(Bytes o) {
    count_ += o.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes o) {
    count_ -= o.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(std::uint64_t n, Bytes a) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator/(Bytes a, std::uint64_t n) { return Bytes(a.count_ / n); }
  friend constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.count_ / b.count_; }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes(a.count_ % b.count_); }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

 private:
  std::uint64_t count_ = 0;
};

/// a − b, or zero when b is larger.
[[nodiscard]] constexpr Bytes saturating_sub(Bytes a, Bytes b) {
  return a > b ? a - b : Bytes();
}
/// The smallest multiple of `unit` that is at least `size`. `unit` is not zero.
[[nodiscard]] constexpr Bytes round_up(Bytes size, Bytes unit) {
  return Bytes((size.count() + unit.count() - 1) / unit.count() * unit.count());
}
[[nodiscard]] constexpr Bytes round_down(Bytes size, Bytes unit) {
  return Bytes(size.count() / unit.count() * unit.count());
}
[[nodiscard]] constexpr bool is_multiple_of(Bytes size, Bytes unit) {
  return size.count() % unit.count() == 0;
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) {
  return Bytes(n);
}
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(n << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(n << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(n << 30);
}
constexpr Bytes operator""_TiB(unsigned long long n) {
  return Bytes(n << 40);
}
}  // namespace literals

/// "1.50 GiB", "384 MiB", "512 B": binary units, at most three significant decimals, no trailing
/// zeros beyond two.
[[nodiscard]] std::string to_string(Bytes size);

template <class T>
class Result;
/// Parses "24GiB", "1.5 GiB", "512MB" and "4096 B". A number without a unit is rejected.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

}  // namespace neap
