#include "arena/host_pool.h"

#include <algorithm>
#include <atomic>
#include <system_error>

#include "arena/host_memory.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

constexpr Bytes kSlice = 4_MiB;        // touched by one thread at a time
constexpr Bytes kUnit = 2_MiB;         // blocks are whole huge pages
constexpr Bytes kAlign = Bytes(4096);  // buffers begin where direct input and output may

std::uint64_t place_of(const std::byte* at) {
  return reinterpret_cast<std::uint64_t>(at);
}

}  // namespace

struct HostPool::Readying::Work {
  struct Slice {
    Chunk* chunk;
    std::byte* at;
    Bytes size;
  };
  HostPool* pool = nullptr;
  std::vector<Slice> slices;
  std::atomic<std::size_t> next{0};

  void run() {
    for (;;) {
      const std::size_t mine = next.fetch_add(1);
      if (mine >= slices.size()) return;
      const Slice& slice = slices[mine];
      Status touched = populate_host(slice.at, slice.size);
      bool last = false;
      {
        const std::lock_guard lock(pool->mutex_);
        if (!touched.ok() && slice.chunk->failure.ok()) slice.chunk->failure = std::move(touched);
        last = --slice.chunk->slices_left == 0;
        if (last && !slice.chunk->failure.ok()) slice.chunk->state = ChunkState::kEmpty;
      }
      if (!last) continue;
      Chunk& chunk = *slice.chunk;
      if (chunk.failure.ok()) {
        const Status pinned = pool->device_.register_host(chunk.at, chunk.size);
        if (!pinned.ok())
          log::warn(
              format("backups are copied from unpinned memory, slower: {}", pinned.message()));
        const std::lock_guard lock(pool->mutex_);
        chunk.pinned = pinned.ok();
        chunk.state = ChunkState::kReady;
      }
      pool->changed_.notify_all();
    }
  }
};

HostPool::~HostPool() {
  dropping_.wait();
  for (auto& [at, block] : blocks_) drop(*block);
}

void HostPool::drop(Block& block) {
  for (const auto& chunk : block.chunks) {
    if (!chunk->pinned) continue;
    if (const Status status = device_.unregister_host(chunk->at); !status.ok())
      log::warn(format("host memory stays pinned until the process ends: {}", status.message()));
  }
  unmap_host(block.at, block.size);
}

Status HostPool::add_block(Bytes size, Bytes expect, Limit limit) {
  const Bytes need = round_up(size, kUnit);
  Bytes want = std::max(need, round_up(expect, kUnit));
  const Bytes room = limit == Limit::kMachine ? Bytes(~0ull) : saturating_sub(budget_, held_);
  if (want > room) want = need;
  if (want > room)
    return Status::driver(
        ErrorCode::kOutOfHostMemory,
        format("backup buffers need {} but {} of the budget of {} is free", size, room, budget_),
        0);
  const Bytes available = available_host_memory();
  if (want > available) want = need;
  if (want > available)
    return {ErrorCode::kOutOfHostMemory,
            format("backup buffers need {} but the machine has {} left", size, available)};
  NEAP_TRY_ASSIGN(std::byte * at, map_host(want));
  auto block = std::make_unique<Block>();
  block->at = at;
  block->size = want;
  for (Bytes offset; offset < want; offset += kChunk) {
    auto chunk = std::make_unique<Chunk>();
    chunk->at = at + offset.count();
    chunk->size = std::min(kChunk, want - offset);
    block->chunks.push_back(std::move(chunk));
  }
  blocks_.emplace(at, std::move(block));
  held_ += want;
  add_free(at, want);
  return {};
}

Result<HostBuffer> HostPool::take(Bytes size, Bytes expect, Limit limit) {
  size = round_up(size, kAlign);
  std::unique_lock lock(mutex_);
  auto at = free_.take(size);
  if (!at) {
    lock.unlock();
    dropping_.wait();
    lock.lock();
    at = free_.take(size);
  }
  if (!at && !add_block(size, expect, limit).ok()) {
    // Blocks that nobody uses, each too small, may be what is in the way.
    lock.unlock();
    release_free();
    lock.lock();
    at = free_.take(size);
    if (!at) NEAP_TRY(add_block(size, expect, limit));
  }
  if (!at) at = free_.take(size);
  auto* buffer = reinterpret_cast<std::byte*>(*at);  // NOLINT(performance-no-int-to-ptr)
  const_cast<Block&>(block_of(buffer)).used += size;
  return HostBuffer{buffer, size};
}

const HostPool::Block& HostPool::block_of(const std::byte* at) const {
  return *std::prev(blocks_.upper_bound(at))->second;
}

void HostPool::add_free(std::byte* at, Bytes size) {
  const Block& block = block_of(at);
  free_.add(place_of(at), size, place_of(block.at), place_of(block.at) + block.size.count());
}

void HostPool::give(const HostBuffer& buffer) {
  if (buffer.none()) return;
  const std::lock_guard lock(mutex_);
  const_cast<Block&>(block_of(buffer.at)).used -= buffer.size;
  add_free(buffer.at, buffer.size);
}

void HostPool::release_free(Drop where) {
  auto gone = std::make_shared<std::vector<std::unique_ptr<Block>>>();
  {
    const std::lock_guard lock(mutex_);
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      Block& block = *it->second;
      const bool busy =
          std::any_of(block.chunks.begin(), block.chunks.end(),
                      [](const auto& chunk) { return chunk->state == ChunkState::kBusy; });
      if (!block.used.is_zero() || busy) {
        ++it;
        continue;
      }
      free_.remove(place_of(block.at), block.size);
      held_ -= block.size;
      gone->push_back(std::move(it->second));
      it = blocks_.erase(it);
    }
  }
  const auto drop_all = [this, gone] {
    for (const auto& block : *gone) drop(*block);
  };
  if (where == Drop::kHere || gone->empty()) return drop_all();
  dropping_.run(drop_all);
}

void HostPool::trim() {
  {
    const std::lock_guard lock(mutex_);
    if (held_ <= budget_) return;
  }
  release_free();
}

Bytes HostPool::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void HostPool::set_budget(Bytes budget) {
  const std::lock_guard lock(mutex_);
  budget_ = budget;
}

HostPool::Readying HostPool::ready(const std::vector<HostBuffer>& buffers) {
  Readying result;
  result.work_ = std::make_shared<Readying::Work>();
  Readying::Work& work = *result.work_;
  work.pool = this;
  {
    const std::lock_guard lock(mutex_);
    for (const HostBuffer& buffer : buffers) {
      if (buffer.none()) continue;
      const Block& block = block_of(buffer.at);
      const auto offset = static_cast<std::uint64_t>(buffer.at - block.at);
      const std::uint64_t last = (offset + buffer.size.count() - 1) / kChunk.count();
      for (std::uint64_t c = offset / kChunk.count(); c <= last; ++c) {
        Chunk& chunk = *block.chunks[c];
        if (chunk.state != ChunkState::kEmpty) continue;
        chunk.state = ChunkState::kBusy;
        chunk.failure = Status();
        for (Bytes at; at < chunk.size; at += kSlice) {
          ++chunk.slices_left;
          work.slices.push_back({&chunk, chunk.at + at.count(), std::min(kSlice, chunk.size - at)});
        }
      }
    }
  }
  const std::size_t helpers = std::min<std::size_t>(threads_, work.slices.size());
  for (std::size_t i = 0; i < helpers; ++i) {
    try {
      result.threads_.emplace_back([shared = result.work_] { shared->run(); });
    } catch (const std::system_error&) {
      break;  // fewer threads, or this one, do the same work
    }
  }
  if (result.threads_.empty()) work.run();
  return result;
}

HostPool::Readying::~Readying() {
  finish();
}

void HostPool::Readying::finish() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Status HostPool::Readying::wait(const std::byte* at, Bytes size) {
  HostPool& pool = *work_->pool;
  std::unique_lock lock(pool.mutex_);
  const Block& block = pool.block_of(at);
  const auto offset = static_cast<std::uint64_t>(at - block.at);
  for (std::uint64_t c = offset / kChunk.count(); c <= (offset + size.count() - 1) / kChunk.count();
       ++c) {
    const Chunk& chunk = *block.chunks[c];
    pool.changed_.wait(lock, [&] { return chunk.state != ChunkState::kBusy; });
    if (chunk.state != ChunkState::kReady)
      return chunk.failure.ok() ? Status(ErrorCode::kInternal, "a backup buffer was not made ready")
                                : chunk.failure;
  }
  return {};
}

void HostPool::split(const device::Copy& copy, std::vector<device::Copy>& out) const {
  const std::lock_guard lock(mutex_);
  const Block& block = block_of(static_cast<const std::byte*>(copy.host));
  Bytes done;
  while (done < copy.size) {
    auto* host = static_cast<std::byte*>(copy.host) + done.count();
    const auto offset = Bytes(static_cast<std::uint64_t>(host - block.at));
    const Bytes to_border = kChunk - offset % kChunk;
    const Bytes size = std::min(to_border, copy.size - done);
    out.push_back({copy.device + done.count(), host, size});
    done += size;
  }
}

}  // namespace neap::arena
