#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/format.h"

namespace neap {
namespace {

std::string hex(XXH128_hash_t hash) {
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string hash_of(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

std::uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct RunningHash::State {
  XXH3_state_t xxh;
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
RunningHash::~RunningHash() = default;

void RunningHash::add(std::string_view piece) {
  XXH3_128bits_update(&state_->xxh, piece.data(), piece.size());
}

std::string RunningHash::text() const {
  return hex(XXH3_128bits_digest(&state_->xxh));
}

}  // namespace neap
