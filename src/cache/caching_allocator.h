// PyTorch's caching-allocator policy over any source of segments. This one class is the allocator
// of CPU runs, the engine of replay and the last step of the planner.
//
// Model     Blocks are parts of segments. Free blocks are kept in pools (small or large, per
//           stream, per private pool) and chosen by best fit. Segments come from a SegmentSource,
//           which is a device, a simulation or a recording.
// Threads   one lock per allocator (LockPolicy::kNone for a replay in its own thread).
// Failure   malloc returns kOutOfDeviceMemory after the same retries as PyTorch. The message says
//           how much was needed, free and held. A failure of the source changes nothing here.
// Cost      malloc and free on the hot path: about 50 ns each, no heap allocation, and no virtual
//           call unless a segment is needed.
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

/// Provides segments. Called only if the cache has no block that fits.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// As cudaMalloc: a mapped range of exactly `size`. `small_pool`: the small pool makes the
  /// request.
  [[nodiscard]] virtual Result<Address> allocate(Bytes size, Stream stream, bool small_pool) = 0;
  virtual Status free(Address at, Bytes size) = 0;
  /// Expandable segments: reserve an address range, then map and unmap whole pages of it.
  [[nodiscard]] virtual Result<Address> reserve(Bytes size, Stream stream, bool small_pool) = 0;
  virtual Status unreserve(Address at, Bytes size) = 0;
  virtual Status map(Address at, Bytes size) = 0;  ///< maps all of it or nothing
  virtual Status unmap(Address at, Bytes size) = 0;
  /// The device's total memory. memory_fraction is a fraction of it; an expandable reservation is
  /// 9/8 of it.
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
                device_frees = 0;  ///< count as num_device_alloc and num_device_free
  std::uint64_t retries = 0, ooms = 0;
  /// Number of times that all pending frees were completed at once (a retry or empty_cache).
  std::uint64_t synchronizations = 0;
  /// fragmentation_at_peak is reserved − requested just before the driver allocation that set the
  /// peak of reserved. fragmentation_max is its maximum over all driver allocations.
  Bytes fragmentation_at_peak, fragmentation_max;
  /// Peak of (reserved − fragmentation), sampled at driver allocations: the paper's "reserved
  /// without fragmentation".
  Bytes peak_reserved_without_fragmentation;
};

enum class LockPolicy { kMutex, kNone };

struct CacheOptions {
  Settings settings;
  PolicyVersion version;
  LockPolicy locking = LockPolicy::kMutex;
  trace::EventSink* events = nullptr;  ///< events have time_ns 0: the sink sets the time
  Bytes page_small = 2_MiB;            ///< page size of expandable segments in the small pool
  std::uint16_t device = 0;            ///< device number in events
};

/// Options of a private pool (of a CUDA graph or a MemPool). Set them before its first allocation.
struct PrivatePoolOptions {
  bool own_allocator = false;  ///< the pool has its own allocator: never expandable
  bool no_split = false;
  bool use_on_oom = false;  ///< its free blocks may serve a default-pool request that would fail
};

class CachingAllocator {
 public:
  CachingAllocator(SegmentSource& source, CacheOptions options);
  /// Returns all segments to the source, including live blocks.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Zero bytes return address 0. `pool` 0 is the default pool; other numbers are private pools.
  [[nodiscard]] Result<Address> malloc(Bytes size, Stream stream = 0, std::uint32_t pool = 0);
  /// Emits free_requested and free_completed. Address 0 is accepted.
  Status free(Address at);
  /// Emits free_requested only. complete_free completes it.
  Status request_free(Address at);
  /// Completes the pending free of `at`: its events have passed.
  Status complete_free(Address at);
  /// Completes pending frees and releases every free, unsplit segment
  /// (torch.cuda.empty_cache).
  Status empty_cache();
  Status set_pool_options(std::uint32_t pool, PrivatePoolOptions options);
  /// The private pool has no owner any more, so its free segments may be released.
  Status release_pool(std::uint32_t pool);
  [[nodiscard]] CacheStats stats() const;
  void reset_peaks();
  /// Rounded size of the live block at `at`; zero if none is live.
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
  /// All segments by address. An expandable reservation yields one segment per mapped range.
  [[nodiscard]] std::vector<SegmentView> snapshot() const;
  /// Takes over existing segments and their blocks before the first malloc. Each entry of
  /// `reservations` is an expandable reservation; segments inside it are its mapped ranges.
  struct Reservation {
    Address address = 0;
    Bytes size;
  };
  Status adopt(const std::vector<SegmentView>& segments,
               const std::vector<Reservation>& reservations);
  /// Releases exactly these bytes if they are free, as the recorded allocator did. An expandable
  /// range is unmapped; an ordinary range must be a whole segment.
  Status release_range(Address at, Bytes size);
  /// Maps `size` bytes at `at`, the start of an unmapped part of an expandable reservation. A
  /// recording shows such ranges for a request that failed in the end.
  Status map_range(Address at, Bytes size);
  /// Whether a free block can serve this request without the source.
  [[nodiscard]] bool would_fit(Bytes size, Stream stream, std::uint32_t pool);
  /// Checks all structures and names the first broken invariant. For tests and debugging.
  Status check_invariants() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::cache
