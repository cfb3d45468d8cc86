// The limit of each row: the code that a program without Neap would use on the same device.
// Internal to bench/.
#pragma once

#include <memory>
#include <vector>

#include "bench/bench.h"

namespace neap::bench {

/// Maps and unmaps handles of one size in one address range.
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

/// The driver calls that one region needs: map, set access and unmap. With `anew` the loop also
/// reserves the address and creates the page, and releases both. It then first waits for the
/// device, as a free does. On a GPU, between enter() and leave(), the loop calls the driver
/// directly.
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

/// Copies between device memory and pinned host memory, in pieces through one queue, and copies
/// within device memory.
class PlainCopies {
 public:
  [[nodiscard]] static Result<std::unique_ptr<PlainCopies>> make(device::Device& device,
                                                                 Bytes size);
  PlainCopies(const PlainCopies&) = delete;
  PlainCopies& operator=(const PlainCopies&) = delete;
  ~PlainCopies();
  /// GB/s, after one warm-up copy.
  [[nodiscard]] Result<double> to_host();
  [[nodiscard]] Result<double> to_device();
  [[nodiscard]] Result<double> both();       ///< sum of both directions
  [[nodiscard]] Result<double> on_device();  ///< bytes read plus bytes written

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
