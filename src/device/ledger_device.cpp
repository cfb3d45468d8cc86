#include "device/ledger_device.h"

#include "base/format.h"
#include "base/log.h"

namespace neap::device {

Result<MemoryInfo> LedgerDevice::memory() {
  const std::lock_guard lock(mutex_);
  return MemoryInfo{ledger_.free(), info_.capacity};
}

Ledger::Usage LedgerDevice::usage() const {
  const std::lock_guard lock(mutex_);
  return ledger_.usage();
}

std::uint64_t LedgerDevice::registered_hosts() const {
  const std::lock_guard lock(mutex_);
  return hosts_.size();
}

Result<Address> LedgerDevice::reserve(Bytes size, Bytes alignment) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_reserve(size, alignment));
  NEAP_TRY_ASSIGN(const Address at, find_addresses(size, alignment));
  ledger_.add_reservation(at, size);
  return at;
}

Status LedgerDevice::unreserve(Address at, Bytes size) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_unreserve(at, size));
  NEAP_TRY(drop_addresses(at, size));
  ledger_.remove_reservation(at);
  return {};
}

Result<PageId> LedgerDevice::create(Bytes size) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_create(size));
  NEAP_TRY_ASSIGN(const std::uint64_t native, make_page(size));
  return ledger_.add_page(size, native, true);
}

Status LedgerDevice::release(PageId page) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY_ASSIGN(const Ledger::Page found, ledger_.owned_page(page));
  // If a map is left, the last unmap releases the memory. If this call fails, the page stays owned.
  if (!ledger_.is_mapped(page)) NEAP_TRY(drop_page(found.native));
  (void)ledger_.drop_claim(page);
  return {};
}

Status LedgerDevice::map(Address at, PageId page) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_map(at, page));
  NEAP_TRY_ASSIGN(const Ledger::Page found, ledger_.owned_page(page));
  NEAP_TRY(bind(at, found.size, found.native));
  ledger_.add_map(at, page);
  return {};
}

Status LedgerDevice::set_access(Address at, Bytes size) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_mapped(at, size, true, false));
  NEAP_TRY(open(at, size));
  ledger_.make_accessible(at, size);
  return {};
}

Status LedgerDevice::unmap(Address at, Bytes size) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY(ledger_.check_mapped(at, size, true, false));
  NEAP_TRY(unbind(at, size));
  // The range is unmapped even if releasing an unowned page fails.
  for (const std::uint64_t native : ledger_.remove_maps(at, size)) {
    if (const Status dropped = drop_page(native); !dropped.ok())
      log::warn(format("a page without an owner is lost: {}", dropped.message()));
  }
  return {};
}

Status LedgerDevice::grant_peer(int ordinal) {
  if (ordinal < 0) return {ErrorCode::kInvalidArgument, format("there is no device {}", ordinal)};
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  if (ordinal == info_.ordinal || peers_.contains(ordinal)) return {};
  NEAP_TRY(admit(ordinal, ledger_.accessible()));
  peers_.insert(ordinal);
  return {};
}

Status LedgerDevice::admit(int, const Ranges&) {
  return {};
}

Status LedgerDevice::register_host(void* at, Bytes size) {
  if (at == nullptr || size.is_zero())
    return {ErrorCode::kInvalidArgument, "cannot register an empty host range"};
  NEAP_TRY(usable());
  {
    const std::lock_guard lock(mutex_);
    if (!hosts_.insert(at).second)
      return {ErrorCode::kAlreadyExists, format("host memory at {} is registered already", at)};
  }
  // Pin without the lock: pinning takes long, and many threads do it at once.
  Status pinned = pin(at, size);
  if (!pinned.ok()) {
    const std::lock_guard lock(mutex_);
    hosts_.erase(at);
  }
  return pinned;
}

Status LedgerDevice::unregister_host(void* at) {
  NEAP_TRY(usable());
  {
    const std::lock_guard lock(mutex_);
    if (!hosts_.contains(at))
      return {ErrorCode::kNotFound, format("no host memory is registered at {}", at)};
  }
  NEAP_TRY(unpin(at));
  const std::lock_guard lock(mutex_);
  hosts_.erase(at);
  return {};
}

Result<int> LedgerDevice::export_page(PageId page) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  NEAP_TRY_ASSIGN(const Ledger::Page found, ledger_.owned_page(page));
  return give_out(found.native);
}

Result<PageId> LedgerDevice::import_page(int descriptor, Bytes size) {
  NEAP_TRY(usable());
  if (size.is_zero() || !is_multiple_of(size, info_.granularity))
    return Status(
        ErrorCode::kInvalidArgument,
        format("a page of {} cannot be imported: granularity is {}", size, info_.granularity));
  NEAP_TRY_ASSIGN(const std::uint64_t native, take_in(descriptor, size));
  const std::lock_guard lock(mutex_);
  return ledger_.add_page(size, native, false);
}

Status LedgerDevice::check_copies(std::span<const Copy> copies) const {
  const std::lock_guard lock(mutex_);
  for (const Copy& copy : copies)
    NEAP_TRY(ledger_.check_mapped(copy.device, copy.size, false, true));
  return {};
}

}  // namespace neap::device
