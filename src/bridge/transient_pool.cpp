#include "bridge/transient_pool.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "bridge/phase_allocator.h"
#include "bridge/runtime.h"
#include "cache/arena_source.h"

namespace neap::bridge {
namespace {

constexpr const char* kTag = "transient";  // tag of the pool's pages in the arena

class Pool final : public TransientPool,
                   public PhaseAllocator,
                   public std::enable_shared_from_this<Pool> {
 public:
  Pool(std::shared_ptr<arena::Arena> arena, const cache::Settings& settings,
       trace::EventSink* events)
      : arena_(std::move(arena)),
        source_(*arena_, kTag, settings.large_segment_size),
        cache_(source_, options(settings, events)) {}

  void open(std::string phase) override;
  Bytes close() override;
  void give_back() override { throw_if_error(cache_.empty_cache()); }
  [[nodiscard]] cache::CacheStats stats() const override { return cache_.stats(); }

  c10::DataPtr allocate(std::size_t size) override;

 private:
  // Held by each tensor of the pool, so that the pool lives as long as its last tensor.
  struct Block {
    std::shared_ptr<Pool> pool;
    cache::Address at;
  };
  static void free(void* block);
  static cache::CacheOptions options(const cache::Settings& settings, trace::EventSink* events) {
    cache::CacheOptions out;
    out.settings = settings;
    out.events = events;
    return out;
  }
  /// The cache knows only its own blocks; the arena knows the other holders of the device's memory.
  [[nodiscard]] Status shortage(Bytes need) const {
    MemoryShortage out;
    out.need = need;
    const arena::Stats stats = arena_->stats();
    if (const auto memory = arena_->device().memory(); memory.ok()) {
      out.free = memory->free + stats.page_store;
      out.capacity = memory->total;
    }
    for (const arena::TagStats& tag : stats.tags) {
      if (!tag.mapped.is_zero() && tag.tag != kTag) out.holders.push_back({tag.tag, tag.mapped});
    }
    const cache::CacheStats own = cache_.stats();
    if (!own.allocated.is_zero()) out.holders.push_back({"live temporaries", own.allocated});
    if (own.reserved > own.allocated)
      out.holders.push_back({"free blocks of the pool", own.reserved - own.allocated});
    std::sort(out.holders.begin(), out.holders.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return Status::out_of_memory("A tensor", std::move(out));
  }

  std::shared_ptr<arena::Arena> arena_;
  cache::ArenaSource source_;
  cache::CachingAllocator cache_;
  std::string phase_;
};

c10::DataPtr Pool::allocate(std::size_t size) {
  if (size == 0 || !serves()) return allocate_outside(size);
  auto block = std::make_unique<Block>();
  Result<cache::Address> at = cache_.malloc(Bytes(size));
  if (!at.ok()) {
    Status status = at.status();
    if (status.code() == ErrorCode::kOutOfDeviceMemory) status = shortage(Bytes(size));
    throw Error(std::move(status).with_context(format("running phase \"{}\"", phase_)));
  }
  block->pool = shared_from_this();
  block->at = at.value();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the cache knows addresses
  return {reinterpret_cast<void*>(block->at), block.release(), &Pool::free,
          c10::Device(c10::DeviceType::CPU)};
}

void Pool::free(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  throw_if_error(block->pool->cache_.free(block->at));
}

void Pool::open(std::string phase) {
  install();
  phase_ = std::move(phase);
  cache_.reset_peaks();
}

Bytes Pool::close() {
  remove();
  return cache_.stats().allocated;
}

}  // namespace

std::shared_ptr<TransientPool> TransientPool::make(std::shared_ptr<arena::Arena> arena,
                                                   const cache::Settings& settings,
                                                   trace::EventSink* events) {
  return std::make_shared<Pool>(std::move(arena), settings, events);
}

HostScope::HostScope() : allocator_(PhaseAllocator::current()) {
  if (allocator_ != nullptr) allocator_->begin_host_scope();
}
HostScope::~HostScope() {
  if (allocator_ != nullptr) allocator_->end_host_scope();
}

}  // namespace neap::bridge
