#include "step/counting/scratch_places.h"

#include <algorithm>

#include "base/bytes.h"

namespace neap::step {

std::uint64_t ScratchPlaces::take(std::uint64_t bytes) {
  const std::uint64_t size = round_up(Bytes(bytes), Bytes(kAlignment)).count();
  std::uint64_t at = 0;
  for (const auto& [offset, end] : used_) {
    if (offset - at >= size) break;
    at = end;
  }
  used_.emplace(at, at + size);
  extent_ = std::max(extent_, at + size);
  return at;
}

bool ScratchPlaces::give_back(std::uint64_t offset) {
  return used_.erase(offset) > 0;
}

}  // namespace neap::step
