// XXH3 hashes of contents. They detect accidental changes, not deliberate collisions.
//
// Threads   values and stateless functions.
// Cost      about 10 GB/s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace neap {

constexpr std::size_t kHashDigits = 32;

/// Returns 128 bits in hexadecimal.
[[nodiscard]] std::string hash_of(std::string_view text);
/// Returns 64 bits.
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes);

/// As hash_of(), for contents that arrive in pieces.
class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  void add(std::string_view piece);
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace neap
