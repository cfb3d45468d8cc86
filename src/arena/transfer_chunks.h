// Steps of a move. A chunk is a run of pages that are mapped or unmapped together, with their copies.
// Internal to arena/.
//
// A chunk ends at a page border and holds about Impl::chunk_size bytes. It takes one call to set access
// or to unmap. Its copies run while the next chunk is mapped or the previous one unmapped.
#pragma once

#include "arena/arena_impl.h"

namespace neap::arena {

struct TransferChunk {
  Tag* tag = nullptr;
  Address at = 0;
  Bytes size;
  std::vector<Bytes> sizes;  ///< of the pages, in address order
  std::vector<Page> pages;   ///< the pages of these sizes, once taken
  std::vector<device::Copy> copies;
  /// Contents that an earlier pause kept and that this pause does not copy again. Used to undo the
  /// pause.
  std::vector<device::Copy> kept;
  std::size_t mapped = 0;  ///< the first `mapped` pages are mapped now
  bool released = false;   ///< the driver has the pages; the host has all contents to keep
};

/// A range of device memory and the place of its contents: a host address or a file offset.
struct Span {
  Address at = 0;
  std::uint64_t place = 0;
  Bytes size;
};

/// Resident regions of the moving tags, which leave the device.
struct Outgoing {
  struct Item {
    Region* region = nullptr;
    Policy policy = Policy::kDiscard;
    bool copy = false;       ///< contents must be copied out
    bool took_host = false;  ///< this move took a buffer, because the region's own was too small
    Backup backup;
    RegionInfo info;
  };
  std::vector<Item> items;
  std::vector<TransferChunk> chunks;
  std::vector<DiskCopy> disk;
  std::vector<DiskCopy> replaced;  ///< files of earlier backups, to be closed in the background
  HostPool::Readying readying;
  Bytes copied;
  [[nodiscard]] std::vector<RegionInfo> infos() const;
};

/// Paused regions of the moving tags, which return to the device.
struct Incoming {
  struct Item {
    Region* region = nullptr;
    RegionInfo info;
  };
  std::vector<Item> items;
  std::vector<TransferChunk> chunks;
  std::vector<DiskCopy> disk;
  std::vector<std::pair<Address, Bytes>> zero;
  /// Set if the host buffers go back to the system after this move.
  std::optional<HostPool::Unpinning> unpinning;
  Bytes copied;
  [[nodiscard]] Bytes size() const;
  [[nodiscard]] std::vector<RegionInfo> infos() const;
};

/// Collects regions and marks them kPausing. secure() adds the copies. The caller holds the table
/// lock.
[[nodiscard]] Outgoing gather_out(Arena::Impl& arena, const std::vector<Tag*>& tags,
                                  const PauseOptions& options);
/// Takes host buffers and disk space, and starts to prepare them. A failure keeps none of them.
Status secure(Arena::Impl& arena, Outgoing& out);
/// Sets the state after a successful pause. Pages stay with the chunks. The caller holds the table
/// lock.
void commit(Arena::Impl& arena, Outgoing& out);
/// Maps what was unmapped and restores the former state. Takes the table lock.
void undo(Arena::Impl& arena, Outgoing& out);

/// Collects regions, marks them kResuming and plans their pages. First unmaps what an earlier
/// failed move could not unmap. Fails with out of memory at once if the device is too small. The
/// caller holds the table lock.
[[nodiscard]] Result<Incoming> gather_in(Arena::Impl& arena, const std::vector<Tag*>& tags,
                                         const Inventory& leaving = {});
/// Sets the state after a successful resume. The caller holds the table lock.
void commit(Arena::Impl& arena, Incoming& in);
/// Unmaps every chunk and returns the pages to the store or the driver. False if the device
/// refused; such pages stay with their chunks.
bool unmap_all(Arena::Impl& arena, Incoming& in, bool to_driver = false);
/// Unmaps every chunk and restores the former state. Takes the table lock.
void undo(Arena::Impl& arena, Incoming& in);

/// Maps the pages that are not mapped yet and sets access. After a failure, chunk.mapped counts the
/// mapped pages; the last of them may lack access.
Status map_pages(Arena::Impl& arena, TransferChunk& chunk);
/// As map_pages(), but a failure leaves nothing mapped, unless unmapping also fails.
Status map_chunk(Arena::Impl& arena, TransferChunk& chunk);
Status unmap_chunk(Arena::Impl& arena, TransferChunk& chunk);
Status copy_out(const TransferChunk& chunk, device::CopyQueue& queue, HostPool::Readying& readying);
Status copy_in(const TransferChunk& chunk, device::CopyQueue& queue);
/// Cuts the spans (in address order) into the chunks' `copies` or `kept`.
void attach_copies(std::vector<TransferChunk>& chunks, const std::vector<Span>& spans,
                   HostPool& hosts,
                   std::vector<device::Copy> TransferChunk::*list = &TransferChunk::copies);
/// Fills zeros and reads from disk after all chunks are mapped.
Status finish_contents(Arena::Impl& arena, Incoming& in, device::CopyQueue* queue);

/// Makes chunks over pages at the given addresses. Cuts at gaps and, unless `most` is zero, at
/// about `most` bytes.
[[nodiscard]] std::vector<TransferChunk> cut_chunks(
    Tag& tag, const std::vector<std::pair<Address, Page>>& pages, Bytes most);
/// Cuts chunks further, at page borders, to about `most` each. Copies stay with their pages.
void recut(std::vector<TransferChunk>& chunks, Bytes most);
[[nodiscard]] bool keeps_contents(Policy policy);

/// A range of addresses to be filled with pages.
struct Run {
  Address at = 0;
  Bytes size;
  PageUse use = PageUse::kFirst;
  Bytes page_limit;
};
/// `leaving`: pages that another tag releases in the same move and that may be reused.
[[nodiscard]] std::vector<std::pair<Address, Page>> plan_pages(const Arena::Impl& arena,
                                                               const std::vector<Run>& runs,
                                                               const Inventory& leaving = {});
/// Pages that a pause of the tags would release. The caller holds the table lock.
[[nodiscard]] Inventory leaving_pages(const Arena::Impl& arena, const std::vector<Tag*>& tags);
[[nodiscard]] std::vector<Page> pages_of(const std::vector<TransferChunk>& chunks);
[[nodiscard]] std::vector<Bytes> sizes_of(const std::vector<TransferChunk>& chunks);
/// Assigns pages to chunks in order.
void assign(std::vector<TransferChunk>& chunks, const std::vector<Page>& pages);

/// Adds mapped chunks to their tags and replaces earlier pages. The caller holds the table lock.
void enter_slots(const std::vector<TransferChunk>& chunks);

/// Removes [at, at+size) from the region's parts.
void remove_part(Region& region, Address at, Bytes size);

}  // namespace neap::arena
