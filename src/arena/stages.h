// Steps of a move: stretches of pages that are mapped or unmapped together, with the copies that
// belong to them. Internal to arena/.
//
// A stage ends at a page border, holds about a copy's worth of bytes (Impl::stage), and is one access or unmap
// call, so that copies of one stage run while the next is mapped or the last unmapped.
#pragma once

#include "arena/table.h"

namespace neap::arena {

struct Stage {
  Tag* tag = nullptr;
  Address at = 0;
  Bytes size;
  std::vector<Bytes> sizes;  ///< of its pages, in address order
  std::vector<Page> pages;   ///< the same, once there
  std::vector<device::Copy> copies;
  /// Contents that an earlier pause kept and this one does not copy again: for going back.
  std::vector<device::Copy> kept;
  std::size_t mapped = 0;  ///< pages, from the first, that are mapped now
};

/// A stretch of device memory and where its contents are kept: a host address or a file's offset.
struct Span {
  Address at = 0;
  std::uint64_t place = 0;
  Bytes size;
};

/// What leaves the device: regions of the moving tags that are resident.
struct Outgoing {
  struct Item {
    Region* region = nullptr;
    Policy policy = Policy::kDiscard;
    bool copy = false;       ///< contents must be copied out
    bool took_host = false;  ///< region had no buffer that fits: this move took it
    Backup backup;
    RegionInfo info;
  };
  std::vector<Item> items;
  std::vector<Stage> stages;
  std::vector<DiskCopy> disk;
  std::vector<DiskCopy> replaced;  ///< files of earlier backups, to be closed in the background
  HostPool::Readying readying;
  Bytes copied;
  [[nodiscard]] std::vector<RegionInfo> infos() const;
};

/// What comes back: regions of the moving tags that are paused.
struct Incoming {
  struct Item {
    Region* region = nullptr;
    RegionInfo info;
  };
  std::vector<Item> items;
  std::vector<Stage> stages;
  std::vector<DiskCopy> disk;
  std::vector<std::pair<Address, Bytes>> zero;
  /// Of buffers that go back to the system after this move.
  std::optional<HostPool::Unpinning> unpinning;
  Bytes copied;
  [[nodiscard]] Bytes size() const;
  [[nodiscard]] std::vector<RegionInfo> infos() const;
};

/// Under the table lock: collects and marks kPausing. Copies are cut later, by secure().
[[nodiscard]] Outgoing gather_out(Arena::Impl& arena, const std::vector<Tag*>& tags,
                                  const PauseOptions& options);
/// Takes host buffers and disk space, and starts making them ready. On failure nothing is kept.
Status secure(Arena::Impl& arena, Outgoing& out);
/// Under the table lock: the state after a pause that went through. Pages stay with the stages.
void commit(Arena::Impl& arena, Outgoing& out);
/// Maps what was unmapped and, under the table lock it takes, puts all as it was.
void undo(Arena::Impl& arena, Outgoing& out);

/// Under the table lock: collects and marks kResuming, plans pages. Leftovers of a move that failed
/// twice are unmapped first. More than the device has is out of memory at once.
[[nodiscard]] Result<Incoming> gather_in(Arena::Impl& arena, const std::vector<Tag*>& tags,
                                         const Inventory& leaving = {});
/// Under the table lock: the state after a resume that went through.
void commit(Arena::Impl& arena, Incoming& in);
/// Unmaps what was mapped, returns the pages to the store; takes the table lock.
void undo(Arena::Impl& arena, Incoming& in);

/// Maps every page and gives access; on failure nothing stays mapped, unless the device refuses
/// that, too: stage.mapped tells.
Status map_stage(Arena::Impl& arena, Stage& stage);
Status unmap_stage(Arena::Impl& arena, Stage& stage);
Status copy_out(const Stage& stage, device::CopyQueue& queue, HostPool::Readying& readying);
Status copy_in(const Stage& stage, device::CopyQueue& queue);
/// Cuts the spans (in address order) into the stages' `copies` or `kept`.
void attach_copies(std::vector<Stage>& stages, const std::vector<Span>& spans, HostPool& hosts,
                   std::vector<device::Copy> Stage::*list = &Stage::copies);
/// Zero-fills and disk reads, after all stages are mapped.
Status finish_contents(Arena::Impl& arena, Incoming& in, device::CopyQueue* queue);

/// Stages over pages of the given places, cut at gaps and, if `most` is not zero, at about `most`.
[[nodiscard]] std::vector<Stage> cut_stages(Tag& tag,
                                            const std::vector<std::pair<Address, Page>>& pages,
                                            Bytes most);
/// Cuts stages further, at page borders, to about `most` each; copies go with their pages.
void recut(std::vector<Stage>& stages, Bytes most);
[[nodiscard]] bool keeps_contents(Policy policy);

/// A run of addresses that pages are to fill.
struct Run {
  Address at = 0;
  Bytes size;
  PageUse use = PageUse::kFirst;
  Bytes page_limit;
};
/// `leaving`: pages that another tag gives up in the same move.
[[nodiscard]] std::vector<std::pair<Address, Page>> plan_pages(const Arena::Impl& arena,
                                                               const std::vector<Run>& runs,
                                                               const Inventory& leaving = {});
/// Under the table lock: what a pause of the tags would give up.
[[nodiscard]] Inventory leaving_pages(const Arena::Impl& arena, const std::vector<Tag*>& tags);
[[nodiscard]] std::vector<Page> pages_of(const std::vector<Stage>& stages);
[[nodiscard]] std::vector<Bytes> sizes_of(const std::vector<Stage>& stages);
/// Hands pages out to stages in order.
void assign(std::vector<Stage>& stages, const std::vector<Page>& pages);

/// Under the table lock: enters mapped stages into their tags; pages that were there are replaced.
void enter_slots(const std::vector<Stage>& stages);

/// Takes [at, at+size) out of the region's parts.
void remove_part(Region& region, Address at, Bytes size);

}  // namespace neap::arena
