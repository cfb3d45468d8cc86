#include "device/ledger.h"

#include <algorithm>

#include "base/format.h"

namespace neap::device {
namespace {

std::uint64_t key(PageId page) {
  return static_cast<std::uint64_t>(page);
}

}  // namespace

Status Ledger::check_reserve(Bytes size, Bytes alignment) const {
  if (size.is_zero() || !is_multiple_of(size, granularity_))
    return {
        ErrorCode::kInvalidArgument,
        format("cannot reserve {}: sizes are multiples of {} and not zero", size, granularity_)};
  // Exceeds the address space of any device, and the sum of two such sizes does not overflow.
  if (std::max(size, alignment) > Bytes(1ull << 62))
    return {ErrorCode::kInvalidArgument,
            format("cannot reserve {}, aligned to {}", size, alignment)};
  const std::uint64_t a = alignment.count();
  if (a != 0 && (a & (a - 1)) != 0)
    return {ErrorCode::kInvalidArgument,
            format("cannot align to {}: alignments are powers of two", alignment)};
  return {};
}

void Ledger::add_reservation(Address at, Bytes size) {
  reservations_.emplace(at, size);
  ++usage_.reservations;
  usage_.reserved += size;
}

Status Ledger::check_unreserve(Address at, Bytes size) const {
  const auto it = reservations_.find(at);
  if (it == reservations_.end() || it->second != size)
    return {ErrorCode::kNotFound, format("no address range of {} was reserved at {:#x}", size, at)};
  bool mapped = false;
  for_each_mapping(at, size, [&](Address, const Mapping&) { mapped = true; });
  if (mapped) return {ErrorCode::kBusy, format("pages are still mapped in the range at {:#x}", at)};
  return {};
}

void Ledger::remove_reservation(Address at) {
  const auto it = reservations_.find(at);
  if (it == reservations_.end()) return;
  --usage_.reservations;
  usage_.reserved -= it->second;
  reservations_.erase(it);
}

Status Ledger::check_create(Bytes size) const {
  if (size.is_zero() || !is_multiple_of(size, granularity_))
    return {ErrorCode::kInvalidArgument,
            format("cannot create a page of {}: sizes are multiples of {} and not zero", size,
                   granularity_)};
  if (size > free()) return Status::out_of_memory("a page", {size, free(), capacity_, {}});
  return {};
}

PageId Ledger::add_page(Bytes size, std::uint64_t native, bool counted) {
  const std::uint64_t id = next_page_++;
  pages_.emplace(id, Record{size, native, 0, true, counted});
  ++usage_.pages;
  if (counted) usage_.page_bytes += size;
  return PageId{id};
}

Result<Ledger::Page> Ledger::owned_page(PageId page) const {
  const auto it = pages_.find(key(page));
  if (it == pages_.end() || !it->second.claimed)
    return Status(ErrorCode::kNotFound, format("there is no page {}", key(page)));
  return Page{it->second.size, it->second.native};
}

std::uint64_t Ledger::erase_page(std::unordered_map<std::uint64_t, Record>::iterator it) {
  const std::uint64_t native = it->second.native;
  --usage_.pages;
  if (it->second.counted) usage_.page_bytes -= it->second.size;
  pages_.erase(it);
  return native;
}

bool Ledger::is_mapped(PageId page) const {
  const auto it = pages_.find(key(page));
  return it != pages_.end() && it->second.maps != 0;
}

std::optional<std::uint64_t> Ledger::drop_claim(PageId page) {
  const auto it = pages_.find(key(page));
  if (it == pages_.end()) return std::nullopt;
  it->second.claimed = false;
  if (it->second.maps != 0) return std::nullopt;
  return erase_page(it);
}

bool Ledger::in_reservation(Address at, Bytes size) const {
  auto it = reservations_.upper_bound(at);
  if (it == reservations_.begin()) return false;
  --it;
  return size <= it->second && at - it->first <= (it->second - size).count();
}

Status Ledger::check_map(Address at, PageId page) const {
  NEAP_TRY_ASSIGN(const Page found, owned_page(page));
  if (!is_multiple_of(Bytes(at), granularity_) || !in_reservation(at, found.size))
    return {ErrorCode::kInvalidArgument,
            format("a page of {} does not fit at {:#x}: no reserved range holds it there",
                   found.size, at)};
  bool taken = false;
  for_each_mapping(at, found.size, [&](Address, const Mapping&) { taken = true; });
  if (taken)
    return {ErrorCode::kAlreadyExists,
            format("something is mapped already in the {} at {:#x}", found.size, at)};
  return {};
}

void Ledger::add_map(Address at, PageId page) {
  Record& record = pages_.at(key(page));
  ++record.maps;
  maps_.emplace(at, Mapping{record.size, page, false});
  ++usage_.maps;
  usage_.mapped += record.size;
}

Status Ledger::check_mapped(Address at, Bytes size, bool whole_pages, bool accessible) const {
  if (size.count() > ~0ull - at)
    return {ErrorCode::kInvalidArgument, format("{} at {:#x}: beyond all addresses", size, at)};
  Address next = at;
  bool whole = true;
  bool open = true;
  for_each_mapping(at, size, [&](Address start, const Mapping& mapping) {
    if (start <= next) {
      if (start < at) whole = false;
      next = start + mapping.size.count();
      open = open && mapping.accessible;
    }
  });
  if (size.is_zero() || next < at + size.count())
    return {ErrorCode::kInvalidArgument,
            format("{} at {:#x}: not mapped from end to end", size, at)};
  if (whole_pages && (!whole || next != at + size.count()))
    return {ErrorCode::kInvalidArgument,
            format("{} at {:#x}: does not begin and end at page borders", size, at)};
  if (accessible && !open)
    return {ErrorCode::kInvalidArgument,
            format("{} at {:#x}: mapped, but access was not set", size, at)};
  return {};
}

void Ledger::make_accessible(Address at, Bytes size) {
  for (auto it = maps_.lower_bound(at); it != maps_.end() && it->first < at + size.count(); ++it)
    it->second.accessible = true;
}

std::vector<std::uint64_t> Ledger::remove_maps(Address at, Bytes size) {
  std::vector<std::uint64_t> gone;
  auto it = maps_.lower_bound(at);
  while (it != maps_.end() && it->first < at + size.count()) {
    --usage_.maps;
    usage_.mapped -= it->second.size;
    const auto page = pages_.find(key(it->second.page));
    if (--page->second.maps == 0 && !page->second.claimed) gone.push_back(erase_page(page));
    it = maps_.erase(it);
  }
  return gone;
}

std::uint64_t Ledger::native_of(PageId page) const {
  const auto it = pages_.find(key(page));
  return it == pages_.end() ? 0 : it->second.native;
}

std::vector<std::uint64_t> Ledger::natives() const {
  std::vector<std::uint64_t> all;
  all.reserve(pages_.size());
  for (const auto& [id, record] : pages_) all.push_back(record.native);
  return all;
}

std::vector<std::pair<Address, Bytes>> Ledger::accessible() const {
  std::vector<std::pair<Address, Bytes>> all;
  for (const auto& [at, mapping] : maps_)
    if (mapping.accessible) all.emplace_back(at, mapping.size);
  return all;
}

std::vector<std::pair<Address, Bytes>> Ledger::reservations() const {
  return {reservations_.begin(), reservations_.end()};
}

}  // namespace neap::device
