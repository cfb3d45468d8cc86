#include "cache/caching_allocator.h"

#include "base/format.h"
#include "cache/core.h"

namespace neap::cache {
namespace {

/// Locks unless the allocator is used by one thread only.
class Guard {
 public:
  Guard(std::mutex& mutex, LockPolicy policy)
      : mutex_(policy == LockPolicy::kMutex ? &mutex : nullptr) {
    if (mutex_ != nullptr) mutex_->lock();
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    if (mutex_ != nullptr) mutex_->unlock();
  }

 private:
  std::mutex* mutex_;
};

}  // namespace

CachingAllocator::CachingAllocator(SegmentSource& source, CacheOptions options)
    : impl_(std::make_unique<Impl>(source, options)) {}

CachingAllocator::~CachingAllocator() {
  impl_->give_everything_back();
}

Result<Address> CachingAllocator::malloc(Bytes size, Stream stream, std::uint32_t pool) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->malloc(size, stream, pool);
}

Status CachingAllocator::free(Address at) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->free(at, false);
}

Status CachingAllocator::request_free(Address at) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->free(at, true);
}

Status CachingAllocator::complete_free(Address at) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  Block* const block = impl_->live.find(at);
  if (block == nullptr || block->state != BlockState::kPending)
    return {ErrorCode::kInvalidArgument, format("No free of {:#x} is pending", at)};
  impl_->complete(block);
  return ok_status();
}

Status CachingAllocator::empty_cache() {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->release_all();
}

Status CachingAllocator::set_pool_options(std::uint32_t pool, PrivatePoolOptions options) {
  if (pool == 0)
    return {ErrorCode::kInvalidArgument, "Pool 0 is the default pool and has no options"};
  const Guard guard(impl_->mutex, impl_->options.locking);
  impl_->private_pool(pool).options = options;
  return ok_status();
}

Status CachingAllocator::release_pool(std::uint32_t pool) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  const auto at = impl_->private_pools.find(pool);
  if (at == impl_->private_pools.end())
    return {ErrorCode::kNotFound, format("There is no private pool {}", pool)};
  at->second->released = true;
  return ok_status();
}

CacheStats CachingAllocator::stats() const {
  const Guard guard(impl_->mutex, impl_->options.locking);
  const Impl& impl = *impl_;
  CacheStats stats = impl.counts;
  stats.allocated = Bytes(impl.allocated);
  stats.reserved = Bytes(impl.reserved);
  stats.requested = Bytes(impl.requested);
  stats.active = Bytes(impl.active);
  stats.peak_allocated = Bytes(impl.peak_allocated);
  stats.peak_reserved = Bytes(impl.peak_reserved);
  stats.peak_requested = Bytes(impl.peak_requested);
  stats.peak_active = Bytes(impl.peak_active);
  stats.fragmentation_at_peak = Bytes(impl.fragmentation_at_peak);
  stats.fragmentation_max = Bytes(impl.fragmentation_max);
  stats.peak_reserved_without_fragmentation = Bytes(impl.peak_without_fragmentation);
  return stats;
}

void CachingAllocator::reset_peaks() {
  const Guard guard(impl_->mutex, impl_->options.locking);
  Impl& impl = *impl_;
  impl.peak_allocated = impl.allocated;
  impl.peak_reserved = impl.reserved;
  impl.peak_requested = impl.requested;
  impl.peak_active = impl.active;
  impl.fragmentation_at_peak = impl.fragmentation_max = impl.peak_without_fragmentation = 0;
}

Bytes CachingAllocator::block_size(Address at) const {
  const Guard guard(impl_->mutex, impl_->options.locking);
  const Block* const block = impl_->live.find(at);
  return block == nullptr || block->state != BlockState::kAllocated ? Bytes() : Bytes(block->size);
}

std::vector<CachingAllocator::SegmentView> CachingAllocator::snapshot() const {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->snapshot();
}

Status CachingAllocator::adopt(const std::vector<SegmentView>& segments,
                               const std::vector<Reservation>& reservations) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->adopt(segments, reservations);
}

Status CachingAllocator::release_range(Address at, Bytes size) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->release_range(at, size);
}

Status CachingAllocator::map_range(Address at, Bytes size) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->map_range(at, size);
}

bool CachingAllocator::would_fit(Bytes size, Stream stream, std::uint32_t pool) {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->would_fit(size, stream, pool);
}

Status CachingAllocator::check_invariants() const {
  const Guard guard(impl_->mutex, impl_->options.locking);
  return impl_->check_invariants();
}

}  // namespace neap::cache
