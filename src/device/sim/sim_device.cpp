#include "device/sim/sim_device.h"

#include <mutex>
#include <set>

#include "base/format.h"

namespace neap::device {
namespace {

class SimDeviceImpl final : public SimDevice {
 public:
  explicit SimDeviceImpl(SimOptions options)
      : ledger_(options.granularity, options.capacity), next_(options.first_address) {
    info_.kind = Kind::kSim;
    info_.ordinal = options.ordinal;
    info_.name = std::move(options.name);
    info_.granularity = options.granularity;
    info_.capacity = options.capacity;
    info_.touches_memory = false;
  }

  const DeviceInfo& info() const override { return info_; }
  Result<MemoryInfo> memory() override {
    const std::lock_guard lock(mutex_);
    return MemoryInfo{ledger_.free(), info_.capacity};
  }
  Ledger::Usage usage() const override {
    const std::lock_guard lock(mutex_);
    return ledger_.usage();
  }

  Result<Address> reserve(Bytes size, Bytes alignment) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_reserve(size, alignment));
    // Ranges given back serve the next of the same size, so that addresses do not grow for ever.
    const Bytes align = std::max(alignment, info_.granularity);
    for (auto it = free_.lower_bound({size.count(), 0});
         it != free_.end() && it->first == size.count(); ++it) {
      if (!is_multiple_of(Bytes(it->second), align)) continue;
      const Address at = it->second;
      free_.erase(it);
      ledger_.add_reservation(at, size);
      return at;
    }
    const Address at = round_up(Bytes(next_), align).count();
    next_ = at + size.count();
    ledger_.add_reservation(at, size);
    return at;
  }
  Status unreserve(Address at, Bytes size) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_unreserve(at, size));
    ledger_.remove_reservation(at);
    free_.emplace(size.count(), at);
    return {};
  }
  Result<PageId> create(Bytes size) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_create(size));
    return ledger_.add_page(size, 0, true);
  }
  Status release(PageId page) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY_ASSIGN([[maybe_unused]] const Ledger::Page found, ledger_.owned_page(page));
    ledger_.drop_claim(page);
    return {};
  }
  Status map(Address at, PageId page) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_map(at, page));
    ledger_.add_map(at, page);
    return {};
  }
  Status set_access(Address at, Bytes size) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_mapped(at, size, true, false));
    ledger_.make_accessible(at, size);
    return {};
  }
  Status unmap(Address at, Bytes size) override {
    const std::lock_guard lock(mutex_);
    NEAP_TRY(ledger_.check_mapped(at, size, true, false));
    ledger_.remove_maps(at, size);
    return {};
  }
  Status copy_to_host(std::span<const Copy> copies) override { return check(copies); }
  Status copy_to_device(std::span<const Copy> copies) override { return check(copies); }
  Status fill(Address at, Bytes size, std::uint8_t) override {
    const Copy copy{at, nullptr, size};
    return check({&copy, 1});
  }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override;
  Status synchronize() override { return {}; }
  Status synchronize(StreamId) override { return {}; }
  Status register_host(void* at, Bytes) override {
    const std::lock_guard lock(mutex_);
    if (!hosts_.insert(at).second)
      return {ErrorCode::kAlreadyExists, format("host memory at {} is registered already", at)};
    return {};
  }
  Status unregister_host(void* at) override {
    const std::lock_guard lock(mutex_);
    if (hosts_.erase(at) == 0)
      return {ErrorCode::kNotFound, format("no host memory is registered at {}", at)};
    return {};
  }
  Result<int> export_page(PageId) override {
    return Status(ErrorCode::kUnsupported, "a simulated page cannot be exported");
  }
  Result<PageId> import_page(int, Bytes) override {
    return Status(ErrorCode::kUnsupported, "a simulated device cannot import pages");
  }

  Status check(std::span<const Copy> copies) const {
    const std::lock_guard lock(mutex_);
    for (const Copy& copy : copies)
      NEAP_TRY(ledger_.check_mapped(copy.device, copy.size, false, true));
    return {};
  }

 private:
  DeviceInfo info_;
  mutable std::mutex mutex_;
  Ledger ledger_;
  Address next_;
  std::set<std::pair<std::uint64_t, Address>> free_;
  std::set<void*> hosts_;
};

class SimCopyQueue final : public CopyQueue {
 public:
  explicit SimCopyQueue(const SimDeviceImpl& device) : device_(device) {}
  Status to_host(const Copy& copy) override { return device_.check({&copy, 1}); }
  Status to_device(const Copy& copy) override { return device_.check({&copy, 1}); }
  Result<std::uint64_t> mark_to_host() override { return std::uint64_t{0}; }
  Result<std::uint64_t> mark_to_device() override { return std::uint64_t{0}; }
  Status wait(std::uint64_t) override { return {}; }
  Status drain() override { return {}; }

 private:
  const SimDeviceImpl& device_;
};

Result<std::unique_ptr<CopyQueue>> SimDeviceImpl::make_copy_queue() {
  return std::unique_ptr<CopyQueue>(std::make_unique<SimCopyQueue>(*this));
}

}  // namespace

Result<std::unique_ptr<SimDevice>> make_sim_device(SimOptions options) {
  const std::uint64_t unit = options.granularity.count();
  if (unit == 0 || (unit & (unit - 1)) != 0)
    return Status(ErrorCode::kInvalidArgument,
                  format("granularity {} is not a power of two", options.granularity));
  options.capacity = round_down(options.capacity, options.granularity);
  return std::unique_ptr<SimDevice>(std::make_unique<SimDeviceImpl>(std::move(options)));
}

}  // namespace neap::device
