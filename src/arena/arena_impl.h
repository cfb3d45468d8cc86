// The state of an arena: tags, regions, and where their pages are. Internal to arena/.
//
// Locking   `table` guards everything here. An operation that moves a tag marks it `moving` under
//           the lock, works without it, and commits under it. The mark keeps other operations off the
//           tag's slots and regions until then (they wait on `settled`). Readers never wait.
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
#include "arena/background_worker.h"
#include "arena/disk_backup.h"
#include "arena/event_recorder.h"
#include "arena/host_pool.h"
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

/// Where a region's contents are while it is paused, and after resume if they are kept.
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
  bool kept = false;  ///< by keep_resident: moves leave it resident
  Backup backup;
  /// Copies of a TransferLane that were not waited for. Grows under the table lock, shared or not; 0 where a move
  /// begins.
  std::atomic<std::uint64_t> transfers{0};
};

struct Tag {
  explicit Tag(std::string tag_name, device::Device& device)
      : name(std::move(tag_name)), space(device) {}
  std::string name;
  AddressSpace space;
  std::map<Address, Page> slots;      ///< mapped pages
  std::map<Address, Region*> blocks;  ///< regions by the addresses they took
  /// Addresses of destroyed regions under pages that neighbours still use. All of it is mapped.
  FreeRanges retired;
  bool moving = false;
  Bytes taken;    ///< pages lent through take_page
  Bytes storage;  ///< of HostStorage
  Bytes disk_storage;
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
  EventRecorder events;
  PageStore store;
  HostPool hosts;
  /// Closes files: a file system needs 0.1 s and more for each GiB that is freed.
  BackgroundWorker closer;
  void close_in_background(std::vector<DiskCopy> copies);
  PageSizes sizes;
  const Bytes chunk_size;  ///< what a move maps, copies and unmaps at once
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
  /// [at, at+size) no longer belongs to a region. Where no page is mapped it becomes free at once.
  void retire(Tag& tag, Address at, Bytes size);
  /// Pages of [at, at+size) were unmapped: frees the addresses there that belong to no region.
  void reclaim(Tag& tag, Address at, Bytes size);
  /// `size` bytes of a destroyed region's addresses, with pages that nothing else maps; 0 if none.
  [[nodiscard]] Address take_retired(Tag& tag, Bytes size);
  [[nodiscard]] RegionInfo describe(const Region& region) const;
  [[nodiscard]] std::vector<MemoryHolder> holders() const;

  // --- anywhere -------------------------------------------------------------------------------
  /// Fails in a forked child: the device's state belongs to the parent.
  Status check_process() const;
  /// Adds need, free and holders to an out-of-memory of the device.
  [[nodiscard]] Status explain(Status status, Bytes need, std::string_view what);
  [[nodiscard]] Result<std::unique_ptr<device::CopyQueue>> take_queue();
  void give_queue(std::unique_ptr<device::CopyQueue> queue);
  /// Returns host buffers without contents of a paused region to the system. True if there were any.
  bool release_kept_buffers();
  /// After a move: returns free buffers to the system unless they are to be kept.
  void release_unkept_buffers();
  void note_freed_pages();
  void record_store();

  Status call_before_unmap(const std::vector<RegionInfo>& regions);
  Status call_after_map(const std::vector<RegionInfo>& regions);
  /// Calls after_map of every listener for regions whose pages stayed, whatever it returns.
  void notify_still_mapped(const std::vector<RegionInfo>& regions);
  /// Whether this thread runs inside a listener of this arena and so must not wait for a move.
  [[nodiscard]] bool in_listener() const;
};

/// Marks tags as moving during its lifetime, after waiting for other moves of them. `lock` is the
/// table lock, held, and outlives this; the destructor takes it again. A listener does not wait,
/// because the move may be its own, and nobody waits for copies of a TransferLane, which the caller
/// may have queued: the status is kBusy and nothing is marked.
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

/// The region whose block holds the address; null for addresses of a destroyed region.
[[nodiscard]] Region* block_owner(const Tag& tag, Address at);
/// What a pause of the tag leaves resident: imported and kept regions, and every region and page that
/// shares a page with them.
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
