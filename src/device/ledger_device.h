// Base class of devices with a ledger. Every call checks, runs the operation and records it under one lock.
//
// Model     The ledger rejects misuse before the operation runs, so that host, sim and cuda report misuse
//           in the same way. A device implements only the operation, with checked arguments.
//
// Threads   any; the lock is held during the operation, never during a copy or a wait.
//
// Failure   failed operations are not recorded.
#pragma once

#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/ledger.h"

namespace neap::device {

class LedgerDevice : public Device {
 public:
  [[nodiscard]] const DeviceInfo& info() const final { return info_; }
  [[nodiscard]] Result<MemoryInfo> memory() override;
  /// Current totals, for leak tests.
  [[nodiscard]] Ledger::Usage usage() const;
  /// Number of host ranges that are registered now.
  [[nodiscard]] std::uint64_t registered_hosts() const;

  [[nodiscard]] Result<Address> reserve(Bytes size, Bytes alignment) final;
  Status unreserve(Address at, Bytes size) final;
  [[nodiscard]] Result<PageId> create(Bytes size) final;
  Status release(PageId page) final;
  Status map(Address at, PageId page) final;
  Status set_access(Address at, Bytes size) final;
  Status unmap(Address at, Bytes size) final;
  Status grant_peer(int ordinal) final;
  Status register_host(void* at, Bytes size) final;
  Status unregister_host(void* at) final;
  [[nodiscard]] Result<int> export_page(PageId page) final;
  [[nodiscard]] Result<PageId> import_page(int descriptor, Bytes size) final;

 protected:
  explicit LedgerDevice(DeviceInfo info)
      : info_(std::move(info)), ledger_(info_.granularity, info_.capacity) {}

  /// Called before the lock is taken, because in a forked child it may stay locked.
  [[nodiscard]] virtual Status usable() const { return {}; }
  /// Checks that copies and fills may access these ranges.
  [[nodiscard]] Status check_copies(std::span<const Copy> copies) const;

  // The operations. `native` is the result of make_page or take_in.
  [[nodiscard]] virtual Result<Address> find_addresses(Bytes size, Bytes alignment) = 0;
  virtual Status drop_addresses(Address at, Bytes size) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> make_page(Bytes size) = 0;
  virtual Status drop_page(std::uint64_t native) = 0;
  virtual Status bind(Address at, Bytes size, std::uint64_t native) = 0;
  virtual Status open(Address at, Bytes size) = 0;
  virtual Status unbind(Address at, Bytes size) = 0;
  /// Gives a peer access to all ranges that are accessible now, and to ranges that `open` adds
  /// later. Devices whose memory is the process's have nothing to do.
  using Ranges = std::vector<std::pair<Address, Bytes>>;
  virtual Status admit(int ordinal, const Ranges& accessible);
  virtual Status pin(void* at, Bytes size) = 0;
  virtual Status unpin(void* at) = 0;
  [[nodiscard]] virtual Result<int> give_out(std::uint64_t native) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> take_in(int descriptor, Bytes size) = 0;

  DeviceInfo info_;
  mutable std::mutex mutex_;
  Ledger ledger_;

 private:
  std::unordered_set<void*> hosts_;
  std::set<int> peers_;
};

}  // namespace neap::device
