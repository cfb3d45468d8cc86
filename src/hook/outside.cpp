#include "hook/outside.h"

#include "hook/session.h"

namespace neap::hook {

Outside& Outside::get() {
  static auto* const kOutside = new Outside();  // outlives static destruction
  return *kOutside;
}

void Outside::allocated(const void* at, Bytes size, int device) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (at == nullptr) return;
  {
    Shard& shard = shards_[shard_of(at)];
    const std::lock_guard lock(shard.mutex);
    shard.blocks[at] = {size, device};
  }
  blocks_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t now =
      bytes_.fetch_add(size.count(), std::memory_order_relaxed) + size.count();
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  Session::get().record_outside(trace::EventKind::kSegmentAlloc, at, size, device);
}

void Outside::failed() {
  calls_.fetch_add(1, std::memory_order_relaxed);
  failures_.fetch_add(1, std::memory_order_relaxed);
}

Bytes Outside::freed(const void* at) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  Block block{};
  {
    Shard& shard = shards_[shard_of(at)];
    const std::lock_guard lock(shard.mutex);
    const auto it = shard.blocks.find(at);
    if (it == shard.blocks.end()) return {};
    block = it->second;
    shard.blocks.erase(it);
  }
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(block.size.count(), std::memory_order_relaxed);
  Session::get().record_outside(trace::EventKind::kSegmentFree, at, block.size, block.device);
  return block.size;
}

OutsideStats Outside::stats() const {
  return {calls_.load(std::memory_order_relaxed), failures_.load(std::memory_order_relaxed),
          blocks_.load(std::memory_order_relaxed), Bytes(bytes_.load(std::memory_order_relaxed)),
          Bytes(peak_.load(std::memory_order_relaxed))};
}

void Outside::lock_all() {
  for (Shard& shard : shards_) shard.mutex.lock();
}
void Outside::unlock_all() {
  for (Shard& shard : shards_) shard.mutex.unlock();
}

}  // namespace neap::hook
