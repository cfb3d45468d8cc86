#include "bridge/transient_pool.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/format.h"
#include "bridge/runtime.h"
#include "cache/arena_source.h"

namespace neap::bridge {
namespace {

constexpr const char* kTag = "transient";  // of the pool's pages in the arena

thread_local bool host_scope_open = false;
// The thread that opened the phase. What kernels' worker threads allocate is scratch: host memory.
thread_local bool phase_thread = false;

class Pool final : public TransientPool {
 public:
  Pool(std::shared_ptr<arena::Arena> arena, const cache::Settings& settings,
       trace::EventSink* events)
      : arena_(std::move(arena)),
        source_(*arena_, kTag, settings.large_segment_size),
        cache_(source_, options(settings, events)) {}

  void open(std::string phase) override;
  Bytes close() override;
  [[nodiscard]] cache::CacheStats stats() const override { return cache_.stats(); }

  void* allocate(std::size_t size) {
    auto result = cache_.malloc(Bytes(size));
    if (result.ok()) return reinterpret_cast<void*>(result.value());
    Status status = result.status();
    if (status.code() == ErrorCode::kOutOfDeviceMemory) status = shortage(Bytes(size));
    throw Error(std::move(status).with_context(format("running phase \"{}\"", phase_)));
  }
  [[nodiscard]] bool owns(void* at) const {
    return !cache_.block_size(reinterpret_cast<cache::Address>(at)).is_zero();
  }
  void free(void* at) { throw_if_error(cache_.free(reinterpret_cast<cache::Address>(at))); }

 private:
  static cache::CacheOptions options(const cache::Settings& settings, trace::EventSink* events) {
    cache::CacheOptions out;
    out.settings = settings;
    out.events = events;
    return out;
  }
  std::shared_ptr<arena::Arena> arena_;  // outlives the tensors
  /// The cache knows its own blocks only; who holds the rest of the device, the arena knows.
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

  cache::ArenaSource source_;
  cache::CachingAllocator cache_;
  std::string phase_;
};

// All pools that may have live tensors. Leaked on purpose: tensors die after statics do.
struct Registry {
  std::shared_mutex mutex;
  std::vector<std::shared_ptr<Pool>> pools;
  std::atomic<Pool*> active{nullptr};
  c10::Allocator* host = nullptr;  // what libtorch had before
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

void delete_host(void* at) {
  registry().host->raw_deallocate(at);
}

// False: `at` is not of a pool.
bool free_pooled(void* at) {
  Registry& r = registry();
  const std::shared_lock lock(r.mutex);
  for (const auto& pool : r.pools) {
    if (!pool->owns(at)) continue;
    pool->free(at);
    return true;
  }
  return false;
}

void delete_pooled(void* at) {
  free_pooled(at);
}

// For raw_allocate's callers, who cannot tell which kind of memory they got.
void delete_any(void* at) {
  if (!free_pooled(at)) delete_host(at);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    Registry& r = registry();
    Pool* pool =
        phase_thread && !host_scope_open ? r.active.load(std::memory_order_acquire) : nullptr;
    if (pool == nullptr || size == 0) {
      void* at = size == 0 ? nullptr : r.host->raw_allocate(size);
      return {at, at, at == nullptr ? &c10::detail::deleteNothing : &delete_host,
              c10::Device(c10::DeviceType::CPU)};
    }
    void* at = pool->allocate(size);
    return {at, at, &delete_pooled, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
};

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    registry().host = c10::GetDefaultCPUAllocator();
    static auto* allocator = new CpuAllocator;
    c10::SetCPUAllocator(allocator, 100);
  });
}

void Pool::open(std::string phase) {
  phase_thread = true;
  phase_ = std::move(phase);
  cache_.reset_peaks();
  registry().active.store(this, std::memory_order_release);
}

Bytes Pool::close() {
  phase_thread = false;
  registry().active.store(nullptr, std::memory_order_release);
  throw_if_error(cache_.empty_cache());
  return cache_.stats().allocated;
}

// Leaves the registry with its last user, unless tensors still live in it.
void retire(Pool* pool) {
  Registry& r = registry();
  Pool* expected = pool;
  r.active.compare_exchange_strong(expected, nullptr);
  std::shared_ptr<Pool> last;  // dies after the lock is gone
  const std::unique_lock lock(r.mutex);
  for (auto it = r.pools.begin(); it != r.pools.end(); ++it) {
    if (it->get() != pool) continue;
    if (pool->stats().allocated.is_zero()) {
      last = std::move(*it);
      r.pools.erase(it);
    }
    break;
  }
}

}  // namespace

std::shared_ptr<TransientPool> TransientPool::make(std::shared_ptr<arena::Arena> arena,
                                                   const cache::Settings& settings,
                                                   trace::EventSink* events) {
  install();
  auto pool = std::make_shared<Pool>(std::move(arena), settings, events);
  Registry& r = registry();
  {
    const std::unique_lock lock(r.mutex);
    // Pools whose runtime and whose last tensor are gone.
    std::erase_if(r.pools, [](const auto& p) {
      return p.use_count() == 1 && p->stats().allocated.is_zero();
    });
    r.pools.push_back(pool);
  }
  Pool* raw = pool.get();
  return {raw, [pool](TransientPool*) mutable {
            retire(pool.get());
            pool.reset();
          }};
}

bool in_host_scope() {
  return host_scope_open;
}
HostScope::HostScope() : previous_(host_scope_open) {
  host_scope_open = true;
}
HostScope::~HostScope() {
  host_scope_open = previous_;
}

}  // namespace neap::bridge
