// What a program without Neap would write over the same device: the limit of each row. Internal to bench/.
#pragma once

#include <memory>
#include <vector>

#include "bench/bench.h"

namespace neap::bench {

/// A loop over handles of one size in one range of addresses.
class PlainLoop {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PlainLoop>> make(device::Device& device,
                                                               std::uint64_t handles, Bytes each);
  PlainLoop(const PlainLoop&) = delete;
  PlainLoop& operator=(const PlainLoop&) = delete;
  ~PlainLoop();
  Status create();
  Status map();
  Status unmap();
  Status release();
  [[nodiscard]] device::Address at() const { return at_; }
  [[nodiscard]] Bytes size() const { return each_ * count_; }
  [[nodiscard]] const std::vector<device::PageId>& pages() const { return pages_; }

 private:
  PlainLoop(device::Device& device, std::uint64_t handles, Bytes each)
      : device_(device), each_(each), count_(handles) {}
  device::Device& device_;
  Bytes each_;
  std::uint64_t count_;
  device::Address at_ = 0;
  bool mapped_ = false;
  std::vector<device::PageId> pages_;
};

/// The driver's calls behind one region: map and access, unmap; with `anew` its address is reserved
/// and its page made and both given back, too, and the device is waited for before, as a free does. On a GPU the driver itself
/// is called, not through Neap's device, between enter() and leave().
class PlainRegion {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PlainRegion>> make(device::Device& device, Bytes size,
                                                                 bool anew);
  virtual ~PlainRegion() = default;
  virtual Status take() = 0;
  virtual Status give() = 0;
  virtual Status enter() { return {}; }
  virtual void leave() {}
};

/// Copies between device memory and pinned host memory, in pieces through one queue, and within
/// device memory.
class PlainCopies {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PlainCopies>> make(device::Device& device,
                                                                 Bytes size);
  PlainCopies(const PlainCopies&) = delete;
  PlainCopies& operator=(const PlainCopies&) = delete;
  ~PlainCopies();
  /// GB/s, after one copy that warms up.
  [[nodiscard]] Result<double> to_host();
  [[nodiscard]] Result<double> to_device();
  [[nodiscard]] Result<double> both();       ///< in sum
  [[nodiscard]] Result<double> on_device();  ///< bytes read and written

 private:
  explicit PlainCopies(device::Device& device) : device_(device) {}
  Result<double> run(bool out, bool in);
  device::Device& device_;
  std::unique_ptr<PlainLoop> memory_;
  std::unique_ptr<device::CopyQueue> queue_;
  Bytes size_;
  std::byte* host_ = nullptr;
  bool pinned_ = false;
};

}  // namespace neap::bench
