#include "step/scratch_places.h"

#include <algorithm>

namespace neap::step {

std::uint64_t ScratchPlaces::take(std::uint64_t bytes) {
  const std::uint64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
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
