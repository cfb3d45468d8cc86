// PyTorch's caching-allocator policy over any source of segments: the allocator of CPU runs, the
// replayer's engine and the planner's last step are this one class.
//
// Model     Blocks live in segments; free blocks wait in pools (small, large, per stream, per
//           private pool) and are chosen by best fit. Segments come from a SegmentSource, which is
//           a device, a simulation, or a recording.
// Threads   one lock per allocator (LockPolicy::kNone for a replay that has a thread of its own).
// Failure   malloc returns kOutOfDeviceMemory after the same retries as PyTorch; the message says
//           what was needed, free and held. A failure of the source changes nothing here.
// Cost      malloc and free on the hot path: no heap allocation, no virtual call unless a segment
//           is needed; about 50 ns each.
// Policy    docs/caching-allocator.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/settings.h"
#include "trace/event.h"

namespace neap::cache {

using Address = std::uint64_t;
using Stream = std::uint64_t;

/// Where segments come from. Called only when the cache has no block that fits.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// cudaMalloc: a mapped range of exactly `size`. `small_pool` tells which pool asks.
  [[nodiscard]] virtual Result<Address> allocate(Bytes size, Stream stream, bool small_pool) = 0;
  virtual Status free(Address at, Bytes size) = 0;
  /// Expandable segments: reserve a range of addresses, map and unmap whole pages of it.
  [[nodiscard]] virtual Result<Address> reserve(Bytes size, Stream stream, bool small_pool) = 0;
  virtual Status unreserve(Address at, Bytes size) = 0;
  virtual Status map(Address at, Bytes size) = 0;  ///< all of it or nothing
  virtual Status unmap(Address at, Bytes size) = 0;
  /// The device's total memory: memory_fraction is a share of it, an expandable reservation is 9/8
  /// of it.
  [[nodiscard]] virtual Bytes capacity() const = 0;
  /// Blocks until every stream that may still use a pending block is done. The cache then completes
  /// all pending frees.
  virtual Status synchronize() { return ok_status(); }
};

struct CacheStats {
  Bytes allocated, reserved, requested, active;
  Bytes peak_allocated, peak_reserved, peak_requested, peak_active;
  std::uint64_t allocs = 0, frees = 0;
  std::uint64_t device_allocs = 0,
                device_frees = 0;  ///< as num_device_alloc, num_device_free count
  std::uint64_t retries = 0, ooms = 0;
  /// How often everything pending was completed at once (a retry or empty_cache).
  std::uint64_t synchronizations = 0;
  /// reserved − requested just before the driver allocation that set the peak of reserved, and its
  /// maximum over all driver allocations.
  Bytes fragmentation_at_peak, fragmentation_max;
  /// Peak of (reserved − fragmentation) sampled at driver allocations: the paper's "reserved
  /// without fragmentation".
  Bytes peak_reserved_without_fragmentation;
};

enum class LockPolicy { kMutex, kNone };

struct CacheOptions {
  Settings settings;
  PolicyVersion version;
  LockPolicy locking = LockPolicy::kMutex;
  trace::EventSink* events = nullptr;  ///< time_ns is 0: the sink stamps
  Bytes page_small = 2_MiB;            ///< expandable segments' page in the small pool
  std::uint16_t device = 0;            ///< number written into events
};

/// What a private pool (a CUDA graph's or a MemPool) may do; set before its first allocation.
struct PrivatePoolOptions {
  bool own_allocator = false;  ///< brings an allocator: never expandable
  bool no_split = false;
  bool use_on_oom = false;  ///< its free blocks may serve a default-pool request that would fail
};

class CachingAllocator {
 public:
  CachingAllocator(SegmentSource& source, CacheOptions options);
  /// Returns all segments to the source, live blocks included.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Zero bytes give address 0. `pool` 0 is the default pool, others are private pools.
  [[nodiscard]] Result<Address> malloc(Bytes size, Stream stream = 0, std::uint32_t pool = 0);
  /// free_requested and, with no other stream using the block, free_completed at once.
  /// Address 0 is accepted.
  Status free(Address at);
  /// Another stream uses the block: its free completes only after complete_free.
  Status record_stream(Address at, Stream stream);
  /// free_requested only; complete_free completes it, whatever streams were recorded.
  Status request_free(Address at);
  /// The pending free of `at` is done (its events have passed).
  Status complete_free(Address at);
  /// Completes pending frees and releases every free, unsplit segment
  /// (torch.cuda.empty_cache).
  Status empty_cache();
  Status set_pool_options(std::uint32_t pool, PrivatePoolOptions options);
  /// The private pool has no owner any more: its free segments may be released.
  Status release_pool(std::uint32_t pool);
  [[nodiscard]] CacheStats stats() const;
  void reset_peaks();
  /// Size of the live block at `at` as rounded, zero if there is none.
  [[nodiscard]] Bytes block_size(Address at) const;

  struct BlockView {
    Address address = 0;
    Bytes size, requested;
    enum class State { kAllocated, kPendingFree, kFree } state = State::kFree;
  };
  struct SegmentView {
    Address address = 0;
    Bytes size;
    Stream stream = 0;
    bool small_pool = false, expandable = false;
    std::uint32_t pool = 0;
    std::vector<BlockView> blocks;
  };
  /// Sorted by address; an expandable reservation gives one segment for each mapped range.
  [[nodiscard]] std::vector<SegmentView> snapshot() const;
  /// Takes over segments that exist already, with their blocks, before the first malloc. Ranges of
  /// an expandable reservation are given by `reservations`, each holding those that lie inside it.
  struct Reservation {
    Address address = 0;
    Bytes size;
  };
  Status adopt(const std::vector<SegmentView>& segments,
               const std::vector<Reservation>& reservations);
  /// Releases exactly these bytes if they are free, as a recording says that the allocator did.
  /// An expandable range is unmapped; an ordinary one is a whole segment.
  Status release_range(Address at, Bytes size);
  /// Maps `size` bytes at `at`, where an unmapped part of an expandable reservation begins: what a
  /// recording says that the allocator took for a request that failed in the end.
  Status map_range(Address at, Bytes size);
  /// Whether a free block would serve this request without asking the source.
  [[nodiscard]] bool would_fit(Bytes size, Stream stream, std::uint32_t pool);
  /// Walks every structure; an error names the first broken invariant. For tests and debugging.
  Status check_invariants() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::cache
