// A source that only counts: segments at realistic addresses, up to a capacity.
//
// Equally large free blocks are chosen by address, so addresses imitate the CUDA driver. Ordinary
// segments fill gaps in 32 MiB chunks that are allocated from the top down. Expandable ranges have
// separate addresses.
//
// Threads   the caller locks.
// Cost      O(log n) per call.
#pragma once

#include <map>

#include "cache/caching_allocator.h"

namespace neap::cache {

class SimSource : public SegmentSource {
 public:
  /// `capacity` is the device's total memory. `held_elsewhere` is the part that others hold.
  explicit SimSource(Bytes capacity, Bytes held_elsewhere = {})
      : capacity_(capacity), limit_(saturating_sub(capacity, held_elsewhere)) {}

  [[nodiscard]] Result<Address> allocate(Bytes size, Stream stream, bool small_pool) override;
  Status free(Address at, Bytes size) override;
  [[nodiscard]] Result<Address> reserve(Bytes size, Stream stream, bool small_pool) override;
  Status unreserve(Address at, Bytes size) override;
  Status map(Address at, Bytes size) override;
  Status unmap(Address at, Bytes size) override;
  [[nodiscard]] Bytes capacity() const override { return capacity_; }

  [[nodiscard]] Bytes used() const { return used_; }
  /// Marks a mapped range as in use: it counts and is not allocated again.
  void occupy(Address at, Bytes size, bool expandable);

 protected:
  /// Chooses the address of a new ordinary segment; vacate() frees it.
  virtual Address place(Bytes length);
  virtual void vacate(Address at, Bytes length);
  /// Takes the range at a known address: from the gap that contains it, or as a new chunk whose
  /// remainder ends at or before `limit`. Lower gaps that would have fitted are removed, because
  /// something else must occupy them.
  void place_at(Address at, Bytes length, Address limit);
  /// Forgets all gaps, so that none is used again.
  void forget_holes() { gaps_.clear(); }
  /// New chunks are placed below this address.
  Address chunk_end_ = 0x7f0000000000;

 private:
  Status take(Bytes size);
  void join_gap(Address at, Bytes size);

  Bytes capacity_;
  Bytes limit_;
  Bytes used_;
  Address reservation_end_ = 0x300000000000;
  std::map<Address, Bytes> gaps_;  ///< free addresses between the lowest chunk and the start
};

}  // namespace neap::cache
