#include "cache/sim_source.h"

#include <algorithm>

#include "base/format.h"

namespace neap::cache {
namespace {
constexpr Bytes kChunk = 32_MiB;
constexpr Bytes kAlignment = 2_MiB;
}  // namespace

Status SimSource::take(Bytes size) {
  if (size > limit_ || used_ > limit_ - size)
    return Status::out_of_memory("The simulated device is full",
                                 {.need = size,
                                  .free = saturating_sub(limit_, used_),
                                  .capacity = capacity_,
                                  .holders = {}});
  used_ += size;
  return ok_status();
}

void SimSource::join_gap(Address at, Bytes size) {
  auto next = gaps_.lower_bound(at);
  if (next != gaps_.end() && at + size.count() == next->first) {
    size += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.count() == at) {
      before->second += size;
      return;
    }
  }
  gaps_.emplace(at, size);
}

Result<Address> SimSource::allocate(Bytes size, Stream, bool) {
  NEAP_TRY(take(size));
  return place(round_up(size, kAlignment));
}

Address SimSource::place(Bytes length) {
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(),
                                [&](const auto& entry) { return entry.second >= length; });
  if (gap == gaps_.end()) {
    const Bytes chunk = round_up(length, kChunk);
    chunk_end_ -= chunk.count();
    if (chunk > length) join_gap(chunk_end_ + length.count(), chunk - length);
    return chunk_end_;
  }
  const Address at = gap->first;
  const Bytes rest = gap->second - length;
  gaps_.erase(gap);
  if (!rest.is_zero()) gaps_.emplace(at + length.count(), rest);
  return at;
}

void SimSource::place_at(Address at, Bytes length, Address limit) {
  const Address end = at + length.count();
  bool in_hole = false;
  for (auto hole = gaps_.begin(); hole != gaps_.end() && hole->first < end;) {
    const auto [begin, size] = *hole;
    const Address hole_end = begin + size.count();
    if (hole_end <= at) {
      hole = size >= length ? gaps_.erase(hole) : std::next(hole);
      continue;
    }
    in_hole = true;
    hole = gaps_.erase(hole);
    if (begin < at) gaps_.emplace(begin, Bytes(at - begin));
    if (hole_end > end) hole = gaps_.emplace(end, Bytes(hole_end - end)).first;
  }
  chunk_end_ = std::min(chunk_end_, at);
  if (in_hole) return;
  Address chunk_end = std::min(at + round_up(length, kChunk).count(), limit);
  if (const auto next = gaps_.lower_bound(end); next != gaps_.end())
    chunk_end = std::min(chunk_end, next->first);
  if (chunk_end > end) join_gap(end, Bytes(chunk_end - end));
}

void SimSource::vacate(Address at, Bytes length) {
  join_gap(at, length);
}

Status SimSource::free(Address at, Bytes size) {
  used_ -= size;
  vacate(at, round_up(size, kAlignment));
  return ok_status();
}

Result<Address> SimSource::reserve(Bytes size, Stream, bool) {
  reservation_end_ -= round_up(size, kAlignment).count();
  return reservation_end_;
}

Status SimSource::unreserve(Address, Bytes) {
  return ok_status();
}

Status SimSource::map(Address, Bytes size) {
  return take(size);
}

Status SimSource::unmap(Address, Bytes size) {
  used_ -= size;
  return ok_status();
}

void SimSource::occupy(Address at, Bytes size, bool expandable) {
  used_ += size;
  Address& end = expandable ? reservation_end_ : chunk_end_;
  end = std::min(end, at / kChunk.count() * kChunk.count());
}

}  // namespace neap::cache
