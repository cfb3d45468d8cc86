// PyTorch's caching-allocator policy over any source of segments: the allocator of CPU runs, the
// replayer's engine and the planner's last step are this one class.
//
// Model     Blocks live in segments; free blocks wait in pools (small, large, per stream, per
// private pool) and are
//           chosen by best fit. Segments come from a SegmentSource, which is a device, a
//           simulation, or a recording.
// Threads   one lock per allocator (optional: LockPolicy::kNone for single-threaded replay).
// Failure   malloc returns kOutOfDeviceMemory after the same retries as PyTorch.
// Cost      malloc/free on the hot path: no heap allocation, no virtual call unless a segment is
// needed. Source    reference: PyTorch 2.1 to 2.13 CUDACachingAllocator behaviour, see
// docs/caching-allocator.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
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
  /// Most bytes that can be reserved at once from here; used for the size of expandable
  /// reservations.
  [[nodiscard]] virtual Bytes capacity() const = 0;
};

/// PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF, parsed.
struct Settings {
  Bytes max_split_size{~0ull};  ///< unlimited
  Bytes max_non_split_rounding = 20_MiB;
  Bytes large_segment_size = 20_MiB;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  std::uint32_t roundup_power2_divisions[16] = {};
  double memory_fraction = 0;  ///< set_per_process_memory_fraction; 0 = unset
  /// Reads "max_split_size_mb:128,expandable_segments:True". Errors name the key as PyTorch would.
  [[nodiscard]] static Result<Settings> parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
};

struct CacheStats {
  Bytes allocated, reserved, requested, active;
  Bytes peak_allocated, peak_reserved, peak_requested, peak_active;
  std::uint64_t allocs = 0, frees = 0;
  std::uint64_t device_allocs = 0,
                device_frees = 0;  ///< as num_device_alloc, num_device_free count
  std::uint64_t retries = 0, ooms = 0;
  /// reserved − allocated at the driver allocation that set the peak of reserved, and its maximum
  /// over all.
  Bytes fragmentation_at_peak, fragmentation_max;
  /// Peak of (reserved − fragmentation) sampled at driver allocations: the paper's "reserved
  /// without fragmentation".
  Bytes peak_reserved_without_fragmentation;
};

enum class LockPolicy { kMutex, kNone };

struct CacheOptions {
  Settings settings;
  LockPolicy locking = LockPolicy::kMutex;
  trace::EventSink* events = nullptr;
  Bytes page_small = 2_MiB;  ///< expandable segments' page in the small pool
  std::uint16_t device = 0;  ///< number written into events
};

class CachingAllocator {
 public:
  CachingAllocator(SegmentSource& source, CacheOptions options);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  [[nodiscard]] Result<Address> malloc(Bytes size, Stream stream = 0, std::uint32_t pool = 0);
  /// free_requested and, with no other stream using the block, free_completed at once.
  Status free(Address at);
  /// Another stream uses the block: its free completes only after complete_free.
  Status record_stream(Address at, Stream stream);
  /// The pending free of `at` is done (its events have passed).
  Status complete_free(Address at);
  /// Gives every free, unsplit segment back (torch.cuda.empty_cache).
  Status empty_cache();
  [[nodiscard]] CacheStats stats() const;
  void reset_peaks();
  /// Size of the live block at `at` as rounded, zero if there is none.
  [[nodiscard]] Bytes block_size(Address at) const;

  struct BlockView {
    Address address;
    Bytes size, requested;
    enum class State { kAllocated, kPendingFree, kFree } state;
  };
  struct SegmentView {
    Address address;
    Bytes size;
    Stream stream;
    bool small_pool, expandable;
    std::uint32_t pool;
    std::vector<BlockView> blocks;
  };
  [[nodiscard]] std::vector<SegmentView> snapshot() const;
  /// Walks every structure; an error names the first broken invariant. For tests and debugging.
  Status check_invariants() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::cache
