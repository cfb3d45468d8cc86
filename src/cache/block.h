// Blocks, the slab that allocates them, and the pools of free blocks. Private to cache/.
#pragma once

#include <memory>
#include <vector>

#include "cache/caching_allocator.h"
#include "cache/free_index.h"

namespace neap::cache {

struct BlockPool;
struct PrivatePool;

/// The free blocks of one stream in one pool. BlockPool sorts its bins by stream.
struct Bin {
  Stream stream = 0;
  BlockPool* pool = nullptr;
  FreeIndex free;      ///< by (size, address)
  FreeIndex unmapped;  ///< by (0, address)
};

struct BlockPool {
  bool small = false;
  PrivatePool* owner = nullptr;
  std::uint64_t search_count = 0;  ///< clock of the garbage collection
  std::vector<std::unique_ptr<Bin>> bins;
};

struct PrivatePool {
  std::uint32_t id = 0;
  PrivatePoolOptions options;
  bool released = false;
  std::uint64_t segments = 0;  ///< number of its segments and reservations
  BlockPool small;
  BlockPool large;
};

/// The address range of an expandable segment.
struct ExpandableRange {
  Address address = 0;
  Bytes size;
  std::uint64_t page = 0;
};

enum class BlockState : std::uint8_t { kUnused, kFree, kAllocated, kPending };

/// Neighbours in a segment are linked in address order. A block is in exactly one place: its bin's
/// free or unmapped index, or the map of live blocks.
struct Block {
  Address address = 0;
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  std::uint64_t born = 0;  ///< search_count of the pool when the block became free
  Bin* bin = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  ExpandableRange* range = nullptr;
  /// Links of the list of pending frees, or of the slab's free list.
  Block* pending_previous = nullptr;
  Block* pending_next = nullptr;
  BlockState state = BlockState::kUnused;
  bool mapped = true;

  [[nodiscard]] bool is_split() const { return previous != nullptr || next != nullptr; }
  [[nodiscard]] bool is_free() const { return state == BlockState::kFree; }
};

class BlockSlab {
 public:
  Block* take() {
    if (spare_ == nullptr) add_chunk();
    Block* block = spare_;
    spare_ = block->pending_next;
    *block = Block{};
    block->state = BlockState::kFree;
    return block;
  }
  void give(Block* block) {
    block->state = BlockState::kUnused;
    block->pending_next = spare_;
    spare_ = block;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& chunk : chunks_)
      for (std::size_t i = 0; i < kChunk; ++i)
        if (chunk[i].state != BlockState::kUnused) visit(&chunk[i]);
  }

 private:
  static constexpr std::size_t kChunk = 512;
  void add_chunk() {
    chunks_.push_back(std::make_unique<Block[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) give(&chunks_.back()[i]);
  }
  std::vector<std::unique_ptr<Block[]>> chunks_;
  Block* spare_ = nullptr;
};

}  // namespace neap::cache
