// What an arena knows: tags, regions, where their pages are. Internal to arena/.
//
// Locking   `table` guards everything here. An operation that moves a tag marks it `moving` under
//           the lock, works without it, and commits under it; the mark is what keeps others off the
//           tag's slots and regions meanwhile (they wait on `settled`). Readers never wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "arena/address_space.h"
#include "arena/arena.h"
#include "arena/beside.h"
#include "arena/disk_backup.h"
#include "arena/host_pool.h"
#include "arena/journal.h"
#include "arena/page_plan.h"
#include "arena/page_store.h"
#include "arena/region_index.h"
#include "base/process.h"

namespace neap::arena {

using device::Address;

/// A stretch of a region, relative to its address.
struct Part {
  Bytes offset;
  Bytes size;
  friend bool operator==(const Part&, const Part&) = default;
};
[[nodiscard]] Bytes total(const std::vector<Part>& parts);

/// Where a region's contents are while it is paused, and afterwards when they were kept.
struct Backup {
  std::vector<Part> parts;  ///< what it covers, stored one after the other
  HostBuffer host;
  std::shared_ptr<DiskFile> file;
  Bytes file_offset;
  bool filled = false;  ///< holds the contents of the last pause

  [[nodiscard]] bool none() const { return host.none() && file == nullptr; }
};

struct Tag;
struct Region {
  RegionId id = RegionId::kNone;
  Tag* tag = nullptr;
  Address address = 0;
  Bytes requested, size;
  Address block = 0;  ///< addresses taken for it: larger than the region for an alias
  Bytes block_size;
  std::vector<Part> parts;  ///< mapped now, or to be mapped at resume; in order
  State state = State::kResident;
  Policy policy = Policy::kDiscard;
  std::uint64_t generation = 0;
  bool imported = false;
  bool kept = false;  ///< resident for good: moves pass it by
  Backup backup;
};

struct Tag {
  explicit Tag(std::string tag_name, device::Device& device)
      : name(std::move(tag_name)), space(device) {}
  std::string name;
  AddressSpace space;
  std::map<Address, Page> slots;      ///< mapped pages
  std::map<Address, Region*> blocks;  ///< regions by the addresses they took
  /// Addresses of destroyed regions under pages that neighbours still use; mapped from end to end.
  FreeRanges dead;
  bool moving = false;
  Bytes taken;  ///< pages lent through take_page
  Bytes page_limit = Bytes(~0ull);
  TagStats sums;  ///< counters only
};

struct Arena::Impl {
  Impl(device::Device& device_in, Options options_in);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  device::Device& device;
  Options options;
  Journal journal;
  PageStore store;
  HostPool hosts;
  /// A file system takes a tenth of a second and more for each GiB that it gets back.
  Beside closer;
  void close_beside(std::vector<DiskCopy> copies);
  PageSizes sizes;
  const Bytes stage;  ///< what a move maps, copies and unmaps at once
  const pid_t owner = current_process();
  std::atomic<bool> keep_host_buffers;  ///< Options::keep_host_buffers, as it is now

  mutable std::shared_mutex table;
  mutable std::condition_variable_any settled;
  std::map<std::string, std::unique_ptr<Tag>, std::less<>> tags;
  std::unordered_map<std::uint64_t, std::unique_ptr<Region>> regions;
  RegionIndex index;
  std::uint64_t next_region = 1;
  struct Listener {
    std::uint64_t id = 0;
    std::string tag;
    Callbacks callbacks;
    bool removed = false;
    std::uint64_t calls = 0;  ///< under way
  };
  std::vector<std::shared_ptr<Listener>> listeners;
  std::uint64_t next_listener = 1;
  std::vector<std::unique_ptr<device::CopyQueue>> idle_queues;
  std::string disk_folder;         ///< Options::disk_folder, as it is now
  std::uint64_t freed_memory = 0;  ///< grows when pages come back; waiters of resume watch it

  // --- under the table lock -------------------------------------------------------------------
  Tag& tag_named(std::string_view name);
  [[nodiscard]] Tag* known_tag(std::string_view name) const;
  Region& add_region(Tag& tag, Address block, Bytes block_size, Address address, Bytes requested,
                     Bytes size, Policy policy);
  void remove_region(Region& region);
  /// [at, at+size) belongs to no region any more; where no page is mapped it is free at once.
  void bury(Tag& tag, Address at, Bytes size);
  /// Pages left [at, at+size): what of it belongs to no region goes back to the tag's addresses.
  void sweep_dead(Tag& tag, Address at, Bytes size);
  /// `size` of a destroyed region's addresses with pages that nobody else sees; zero without.
  [[nodiscard]] Address take_dead(Tag& tag, Bytes size);
  [[nodiscard]] RegionInfo describe(const Region& region) const;
  [[nodiscard]] std::vector<MemoryHolder> holders() const;

  // --- anywhere -------------------------------------------------------------------------------
  /// Fails in a forked child: the device's state is the parent's.
  Status check_process() const;
  /// Adds need, free and holders to an out-of-memory of the device.
  [[nodiscard]] Status explain(Status status, Bytes need, std::string_view what);
  [[nodiscard]] Result<std::unique_ptr<device::CopyQueue>> take_queue();
  void give_queue(std::unique_ptr<device::CopyQueue> queue);
  /// Buffers of regions that hold no contents of a pause go back to the system; whether there were
  /// any.
  bool give_kept_buffers();
  /// After a move: free buffers go back to the system where they are not to be kept.
  void let_buffers_go();
  void pages_came_back();
  void record_store();

  Status call_before_unmap(const std::vector<RegionInfo>& regions);
  Status call_after_map(const std::vector<RegionInfo>& regions);
  /// after_map for regions whose pages did not leave after all: every listener, whatever one says.
  void tell_still_there(const std::vector<RegionInfo>& regions);
  /// This thread is inside a listener of this arena: it must not wait for a move.
  [[nodiscard]] bool in_listener() const;
};

/// Marks tags as moving for as long as it lives, after waiting for whoever moves them now. `lock` is
/// the table's, held, and outlives this; at the end it is held again. A listener does not wait, the
/// move may be its own: it gets kBusy as the status, and nothing is marked.
class Moving {
 public:
  Moving(Arena::Impl& impl, std::unique_lock<std::shared_mutex>& lock, std::vector<Tag*> tags);
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;
  ~Moving();
  [[nodiscard]] const std::vector<Tag*>& tags() const { return tags_; }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Arena::Impl& impl_;
  std::unique_lock<std::shared_mutex>& lock_;
  std::vector<Tag*> tags_;
  Status status_;
};

/// The region whose block holds the address; null in the space of a destroyed one.
[[nodiscard]] Region* block_owner(const Tag& tag, Address at);
/// What a pause of the tag leaves alone: imported and kept regions, and whatever lies under the same
/// pages.
struct Staying {
  std::set<const Region*> regions;
  std::map<Address, Bytes> slots;
};
[[nodiscard]] Staying staying(const Tag& tag);
/// The same for one region of the tag.
[[nodiscard]] Staying staying_with(const Region& region);
/// Pages of a tag that touch [at, at+size).
[[nodiscard]] std::vector<std::pair<Address, Page>> slots_touching(const Tag& tag, Address at,
                                                                   Bytes size);

}  // namespace neap::arena
