#include "cache/arena_source.h"

#include <algorithm>

#include "base/format.h"
#include "base/log.h"

namespace neap::cache {
ArenaSource::~ArenaSource() {
  for (const auto& [at, range] : ranges_) {
    Status status;
    for (auto it = pages_.lower_bound(at);
         status.ok() && it != pages_.end() && it->first < at + range.size.count();) {
      const auto next = std::next(it);
      status = take_pages(it->first, it->second.size);
      it = next;
    }
    if (status.ok()) status = arena_.device().unreserve(at, range.size);
    if (!status.ok())
      log::warn(format("Giving back segments of \"{}\": {}", tag_, status.message()));
  }
}

Status ArenaSource::put_page(Address at, Bytes size) {
  NEAP_TRY_ASSIGN(const device::PageId page, arena_.take_page(tag_, size));
  if (Status status = arena_.device().map(at, page); !status.ok()) {
    arena_.give_page(tag_, page, size);
    return status;
  }
  pages_.emplace(at, Held{page, size});
  return {};
}

Status ArenaSource::take_pages(Address at, Bytes size) {
  NEAP_TRY(arena_.device().unmap(at, size));
  auto it = pages_.lower_bound(at);
  while (it != pages_.end() && it->first < at + size.count()) {
    arena_.give_page(tag_, it->second.page, it->second.size);
    it = pages_.erase(it);
  }
  return {};
}

Result<Address> ArenaSource::allocate(Bytes size, Stream stream, bool small_pool) {
  NEAP_TRY_ASSIGN(const Address at, reserve(size, stream, small_pool));
  Range& range = ranges_.at(at);
  range.unit = Bytes(0);
  if (Status status = map(at, range.size); !status.ok()) {
    const Status given = unreserve(at, size);
    if (!given.ok()) log::warn(given.message());
    return status;
  }
  return at;
}

Status ArenaSource::free(Address at, Bytes size) {
  const auto it = ranges_.find(at);
  if (it == ranges_.end())
    return {ErrorCode::kInvalidArgument, format("{:#x} is not a segment of \"{}\"", at, tag_)};
  NEAP_TRY(take_pages(at, it->second.size));
  return unreserve(at, size);
}

Result<Address> ArenaSource::reserve(Bytes size, Stream, bool small_pool) {
  const Bytes rounded = round_up(size, arena_.device().info().granularity);
  NEAP_TRY_ASSIGN(const Address at, arena_.device().reserve(rounded, Bytes(0)));
  ranges_.emplace(at, Range{rounded, small_pool ? kSmallSegment : large_page_});
  return at;
}

Status ArenaSource::unreserve(Address at, Bytes) {
  const auto it = ranges_.find(at);
  if (it == ranges_.end())
    return {ErrorCode::kInvalidArgument, format("{:#x} is not a range of \"{}\"", at, tag_)};
  NEAP_TRY(arena_.device().unreserve(at, it->second.size));
  ranges_.erase(it);
  return {};
}

Status ArenaSource::map(Address at, Bytes size) {
  auto it = ranges_.upper_bound(at);
  if (it == ranges_.begin())
    return {ErrorCode::kInvalidArgument, format("{:#x} is in no range of \"{}\"", at, tag_)};
  const Range& range = std::prev(it)->second;
  // Use the allocator's page size if it divides the request, else the granularity: any page can
  // then be unmapped alone.
  Bytes unit = range.unit.is_zero() ? size : range.unit;
  if (!is_multiple_of(size, unit) || !is_multiple_of(unit, arena_.device().info().granularity)) {
    unit = arena_.device().info().granularity;
  }
  Address done = at;
  Status status;
  for (; status.ok() && done < at + size.count(); done += unit.count())
    status = put_page(done, unit);
  if (status.ok()) status = arena_.device().set_access(at, size);
  if (status.ok()) return {};
  // Map all or nothing. The page that failed was never mapped.
  const Address end = pages_.contains(done - unit.count()) ? done : done - unit.count();
  if (end > at) {
    const Status undone = take_pages(at, Bytes(end - at));
    if (!undone.ok()) log::warn(undone.message());
  }
  return status;
}

Status ArenaSource::unmap(Address at, Bytes size) {
  return take_pages(at, size);
}

}  // namespace neap::cache
