#include "arena/host_pool.h"

#include <algorithm>
#include <atomic>
#include <system_error>

#include "arena/host_memory.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {
namespace {

constexpr Bytes kSlice = 4_MiB;  // touched by one thread at a time

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
      Status touched = slice.size.is_zero() ? Status() : populate_host(slice.at, slice.size);
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
  for (auto& [at, block] : blocks_) drop(*block);
}

void HostPool::drop(Block& block) {
  for (const auto& chunk : block.chunks) {
    if (!chunk->pinned) continue;
    if (const Status status = device_.unregister_host(chunk->at); !status.ok())
      log::warn(format("host memory stays pinned until the process ends: {}", status.message()));
  }
  unmap_host(block.at, block.size, threads_);
}

bool HostPool::Block::idle() const {
  return used.is_zero() && std::none_of(chunks.begin(), chunks.end(), [](const auto& chunk) {
           return chunk->state == ChunkState::kBusy;
         });
}

Status HostPool::add_block(Bytes size, Bytes expect, Owner owner, Limit limit) {
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
  block->owner = owner;
  for (Bytes offset; offset < want; offset += kChunk) {
    auto chunk = std::make_unique<Chunk>();
    chunk->at = at + offset.count();
    chunk->size = std::min(kChunk, want - offset);
    block->chunks.push_back(std::move(chunk));
  }
  unused_.insert(block.get());
  blocks_.emplace(at, std::move(block));
  held_ += want;
  add_free(at, want);
  return {};
}

std::optional<FreeRanges::Place> HostPool::take_free(Bytes size, Owner owner) {
  if (const auto at = free_[owner].take(size)) return at;
  // Staging memory has no owner and stays outside of the budget.
  const auto found = std::find_if(unused_.begin(), unused_.end(), [&](const Block* block) {
    return block->size >= size && block->owner != kStaging && owner != kStaging && block->idle();
  });
  if (found == unused_.end()) return std::nullopt;
  Block& block = **found;
  free_[block.owner].remove(place_of(block.at), block.size);
  block.owner = owner;
  add_free(block.at, block.size);
  return free_[owner].take(size);
}

template <class Make>
Status HostPool::make_room(std::unique_lock<std::mutex>& lock, const Make& make) {
  if (make().ok()) return {};
  lock.unlock();
  release_free();
  lock.lock();
  return make();
}

Result<HostBuffer> HostPool::take(Bytes size, Bytes expect, Owner owner, Limit limit) {
  size = round_up(size, kAlign);
  std::unique_lock lock(mutex_);
  std::optional<FreeRanges::Place> at;
  NEAP_TRY(make_room(lock, [&]() -> Status {
    at = take_free(size, owner);
    return at ? Status() : add_block(size, expect, owner, limit);
  }));
  if (!at) at = free_[owner].take(size);
  auto* buffer = reinterpret_cast<std::byte*>(*at);  // NOLINT(performance-no-int-to-ptr)
  Block& block = block_of(buffer);
  block.used += size;
  unused_.erase(&block);
  return HostBuffer{buffer, size};
}

Bytes HostPool::block_bytes(std::span<const Bytes> sizes) {
  Bytes sum;
  for (const Bytes size : sizes) sum += round_up(size, kAlign);
  return round_up(sum, kUnit);
}

Status HostPool::reserve(std::span<const Bytes> sizes, Owner owner) {
  const Bytes all = block_bytes(sizes);
  if (all.is_zero()) return {};
  std::unique_lock lock(mutex_);
  return make_room(lock, [&] { return add_block(all, all, owner, Limit::kBudget); });
}

HostPool::Block& HostPool::block_of(const std::byte* at) const {
  return *std::prev(blocks_.upper_bound(at))->second;
}

void HostPool::add_free(std::byte* at, Bytes size) {
  const Block& block = block_of(at);
  free_[block.owner].add(place_of(at), size, place_of(block.at),
                         place_of(block.at) + block.size.count());
}

void HostPool::give(const HostBuffer& buffer) {
  if (buffer.none()) return;
  const std::lock_guard lock(mutex_);
  Block& block = block_of(buffer.at);
  block.used -= buffer.size;
  if (block.used.is_zero()) unused_.insert(&block);
  add_free(buffer.at, buffer.size);
}

void HostPool::release_free(std::optional<Owner> owner) {
  std::vector<std::unique_ptr<Block>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (Block* block : std::set<Block*>(unused_)) {
      if (!block->idle() || (owner && block->owner != *owner)) continue;
      const auto free = free_.find(block->owner);
      free->second.remove(place_of(block->at), block->size);
      if (free->second.all().empty()) free_.erase(free);
      unused_.erase(block);
      const auto entry = blocks_.find(block->at);
      gone.push_back(std::move(entry->second));
      blocks_.erase(entry);
    }
  }
  Bytes size;
  for (const auto& block : gone) {
    drop(*block);
    size += block->size;
  }
  const std::lock_guard lock(mutex_);
  held_ -= size;
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
        const bool touched = chunk.state == ChunkState::kUnpinned;
        if (!touched && chunk.state != ChunkState::kEmpty) continue;
        chunk.state = ChunkState::kBusy;
        chunk.failure = Status();
        if (touched) {
          chunk.slices_left = 1;
          work.slices.push_back({&chunk, chunk.at, Bytes(0)});
          continue;
        }
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

HostPool::Unpinning HostPool::unpinning(const std::vector<HostBuffer>& buffers) {
  Unpinning result(*this);
  const std::lock_guard lock(mutex_);
  std::map<Block*, Bytes> going;
  for (const HostBuffer& buffer : buffers)
    if (!buffer.none()) going[&block_of(buffer.at)] += buffer.size;
  for (const auto& [block, size] : going)
    if (size == block->used) result.blocks_.emplace(block->at, block);
  return result;
}

HostPool::Chunk* HostPool::Unpinning::chunk_of(const device::Copy& copy) const {
  const auto* at = static_cast<const std::byte*>(copy.host);
  auto it = blocks_.upper_bound(at);
  if (it == blocks_.begin()) return nullptr;
  const Block& block = *std::prev(it)->second;
  const auto offset = static_cast<std::uint64_t>(at - block.at);
  if (offset >= block.size.count()) return nullptr;
  return block.chunks[offset / kChunk.count()].get();
}

void HostPool::Unpinning::expect(const device::Copy& copy) {
  if (Chunk* chunk = chunk_of(copy)) to_copy_[chunk] += copy.size;
}

void HostPool::Unpinning::done(const device::Copy& copy) {
  Chunk* chunk = chunk_of(copy);
  if (chunk == nullptr) return;
  Bytes& left = to_copy_[chunk];
  left -= copy.size;
  if (!left.is_zero() || !chunk->pinned) return;
  // If the driver refuses, the block's destructor tries again.
  if (!pool_->device_.unregister_host(chunk->at).ok()) return;
  const std::lock_guard lock(pool_->mutex_);
  chunk->pinned = false;
  chunk->state = ChunkState::kUnpinned;
  unpinned_.push_back(chunk);
}

void HostPool::Unpinning::undo() {
  for (Chunk* chunk : unpinned_) {
    const Status pinned = pool_->device_.register_host(chunk->at, chunk->size);
    if (!pinned.ok())
      log::warn(format("backups are copied from unpinned memory, slower: {}", pinned.message()));
    const std::lock_guard lock(pool_->mutex_);
    chunk->pinned = pinned.ok();
    if (pinned.ok()) chunk->state = ChunkState::kReady;
  }
  unpinned_.clear();
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
