// State of an arena: tags, regions and the places of their pages. Internal to arena/.
//
// Locking   `table` guards everything here. An operation that moves a tag marks it `moving` under
//           the lock, works without the lock, and commits under it. The mark keeps other operations
//           away from the tag's slots and regions; they wait on `settled`. Readers never wait.
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

/// A range of a region, relative to the region's address.
struct Part {
  Bytes offset;
  Bytes size;
  friend bool operator==(const Part&, const Part&) = default;
};
[[nodiscard]] Bytes total(const std::vector<Part>& parts);

/// Where a region's contents are while it is paused, and after resume if they are kept.
struct Backup {
  std::vector<Part> parts;  ///< the parts it covers, stored one after the other
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
  Address block = 0;  ///< addresses taken for the region; an alias takes more than its size
  Bytes block_size;
  std::vector<Part> parts;  ///< mapped now, or to be mapped at resume; in address order
  State state = State::kResident;
  Policy policy = Policy::kDiscard;
  std::uint64_t generation = 0;
  bool imported = false;
  bool kept = false;  ///< by keep_resident: moves leave it resident
  Backup backup;
  /// Copies of a TransferLane that were not waited for. It grows under the table lock, shared or
  /// exclusive. It is 0 when a move begins.
  std::atomic<std::uint64_t> transfers{0};
};

struct Tag {
  explicit Tag(std::string tag_name, device::Device& device)
      : name(std::move(tag_name)), space(device) {}
  std::string name;
  AddressSpace space;
  std::map<Address, Page> slots;      ///< mapped pages
  std::map<Address, Region*> blocks;  ///< regions, by the start of their address block
  /// Addresses of destroyed regions under pages that neighbours still use. All of them are mapped.
  FreeRanges retired;
  bool moving = false;
  Bytes taken;    ///< pages lent through take_page
  Bytes storage;  ///< held by HostStorage
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
  /// Closes files in the background: a file system needs 0.1 s or more per GiB freed.
  BackgroundWorker closer;
  void close_in_background(std::vector<DiskCopy> copies);
  PageSizes sizes;
  const Bytes chunk_size;  ///< bytes that a move maps, copies and unmaps at once
  const pid_t owner = current_process();
  std::atomic<bool> keep_host_buffers;  ///< current value of Options::keep_host_buffers

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
    std::uint64_t calls = 0;  ///< calls that are running
  };
  std::vector<std::shared_ptr<Listener>> listeners;
  std::uint64_t next_listener = 1;
  std::vector<std::unique_ptr<device::CopyQueue>> idle_queues;
  std::string disk_folder;         ///< current value of Options::disk_folder
  std::uint64_t freed_memory = 0;  ///< grows when pages come back; waiters of resume watch it

  // --- the caller holds the table lock ---------------------------------------------------------
  Tag& tag_named(std::string_view name);
  [[nodiscard]] Tag* known_tag(std::string_view name) const;
  Region& add_region(Tag& tag, Address block, Bytes block_size, Address address, Bytes requested,
                     Bytes size, Policy policy);
  void remove_region(Region& region);
  /// Marks [at, at+size) as no longer belonging to a region. Addresses without a mapped page become
  /// free at once.
  void retire(Tag& tag, Address at, Bytes size);
  /// Call after pages of [at, at+size) were unmapped. Frees the addresses there that belong to no
  /// region.
  void reclaim(Tag& tag, Address at, Bytes size);
  /// Takes `size` bytes of a destroyed region's addresses whose pages nothing else maps; 0 if none.
  [[nodiscard]] Address take_retired(Tag& tag, Bytes size);
  [[nodiscard]] RegionInfo describe(const Region& region) const;
  [[nodiscard]] std::vector<MemoryHolder> holders() const;

  // --- any thread, with or without the lock ------------------------------------------------------
  /// Fails in a forked child: the device's state belongs to the parent.
  Status check_process() const;
  /// Adds the bytes needed, the free bytes and the holders to an out-of-memory status of the
  /// device.
  [[nodiscard]] Status explain(Status status, Bytes need, std::string_view what);
  [[nodiscard]] Result<std::unique_ptr<device::CopyQueue>> take_queue();
  void give_queue(std::unique_ptr<device::CopyQueue> queue);
  /// Returns host buffers that hold no contents of a paused region to the system. True if there
  /// were any.
  bool release_kept_buffers();
  /// Call after a move. Returns free buffers to the system unless they are to be kept.
  void release_unkept_buffers();
  void note_freed_pages();
  void record_store();

  Status call_before_unmap(const std::vector<RegionInfo>& regions);
  Status call_after_map(const std::vector<RegionInfo>& regions);
  /// Calls after_map of every listener for regions whose pages stayed. Ignores what the listeners
  /// return.
  void notify_still_mapped(const std::vector<RegionInfo>& regions);
  /// Whether this thread runs inside a listener of this arena and so must not wait for a move.
  [[nodiscard]] bool in_listener() const;
};

/// Waits for other moves of the tags, then marks them as moving during its lifetime. `lock` is the
/// held table lock and outlives this object; the destructor locks it again. Two cases return kBusy
/// and mark nothing. A listener does not wait, because the move may be its own. Copies of a
/// TransferLane are not waited for, because the caller may have queued them.
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
/// Parts of a tag that stay resident through a pause: imported and kept regions, and every region
/// and page that shares a page with them.
struct Staying {
  std::set<const Region*> regions;
  std::map<Address, Bytes> slots;
};
[[nodiscard]] Staying staying(const Tag& tag);
/// As staying(), for one region of the tag.
[[nodiscard]] Staying staying_with(const Region& region);
/// Pages of a tag that touch [at, at+size).
[[nodiscard]] std::vector<std::pair<Address, Page>> slots_touching(const Tag& tag, Address at,
                                                                   Bytes size);

}  // namespace neap::arena
