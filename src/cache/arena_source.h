// Segments made of an arena's pages. Segments that the cache releases stay in the page store for
// the next tag.
//
// Model     An ordinary segment is one page at its own address. An expandable reservation is mapped
//           in pages of the pool's size (2 MiB in the small pool, Settings::large_segment_size in
//           the large one), so that each can be unmapped alone.
// Threads   the caller (the cache) locks.
// Failure   as Device and Arena; a failed call changes nothing.
// Cost      two driver calls, and one more for the page unless the store has one.
#pragma once

#include <map>
#include <string>

#include "arena/arena.h"
#include "cache/caching_allocator.h"

namespace neap::cache {

class ArenaSource final : public SegmentSource {
 public:
  /// Out-of-memory messages name `tag` as the holder of the pages. The arena outlives the source.
  /// `large_page`: Settings::large_segment_size of the cache.
  ArenaSource(arena::Arena& arena, std::string tag, Bytes large_page)
      : arena_(arena), tag_(std::move(tag)), large_page_(large_page) {}
  ~ArenaSource() override;
  ArenaSource(const ArenaSource&) = delete;
  ArenaSource& operator=(const ArenaSource&) = delete;

  [[nodiscard]] Result<Address> allocate(Bytes size, Stream stream, bool small_pool) override;
  Status free(Address at, Bytes size) override;
  [[nodiscard]] Result<Address> reserve(Bytes size, Stream stream, bool small_pool) override;
  Status unreserve(Address at, Bytes size) override;
  Status map(Address at, Bytes size) override;
  Status unmap(Address at, Bytes size) override;
  [[nodiscard]] Bytes capacity() const override { return arena_.device().info().capacity; }
  Status synchronize() override { return arena_.device().synchronize(); }

 private:
  struct Range {
    Bytes size;
    Bytes unit;  // size of its pages; zero: one page for the whole range
  };
  struct Held {
    device::PageId page = device::PageId::kNone;
    Bytes size;
  };
  /// Takes a page and maps it at `at`. It is not accessible yet.
  Status put_page(Address at, Bytes size);
  /// Unmaps the whole pages of [at, at+size) and returns them to the arena.
  Status take_pages(Address at, Bytes size);

  arena::Arena& arena_;
  std::string tag_;
  Bytes large_page_;
  std::map<Address, Range> ranges_;
  std::map<Address, Held> pages_;
};

}  // namespace neap::cache
