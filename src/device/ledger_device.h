// What devices with a ledger share: every call checks, acts and books under one lock.
//
// Model     The ledger refuses misuse before anything is done, so that host, sim and cuda answer it
//           alike; what is left to a device is the act itself, and it runs with checked arguments.
// Threads   any; the lock is held over the act, never over a copy or a wait.
// Failure   an act that fails is not booked.
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
  /// What is held now, for leak tests.
  [[nodiscard]] Ledger::Usage usage() const;
  /// Host ranges registered and not yet unregistered.
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

  /// Before the lock is taken, which a forked child may never get.
  [[nodiscard]] virtual Status usable() const { return {}; }
  /// Copies and fills may touch these ranges.
  [[nodiscard]] Status check_copies(std::span<const Copy> copies) const;

  // The acts. `native` is what make_page or take_in answered.
  [[nodiscard]] virtual Result<Address> find_addresses(Bytes size, Bytes alignment) = 0;
  virtual Status drop_addresses(Address at, Bytes size) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> make_page(Bytes size) = 0;
  virtual Status drop_page(std::uint64_t native) = 0;
  virtual Status bind(Address at, Bytes size, std::uint64_t native) = 0;
  virtual Status open(Address at, Bytes size) = 0;
  virtual Status unbind(Address at, Bytes size) = 0;
  /// A peer is to reach what is accessible now, and what `open` opens later. Devices whose memory
  /// is the process' own have nothing to do.
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
