// Tagged regions on a device that keep their address for life while their memory comes and goes.
//
// Model        A region is an address range with a tag. Regions of one tag pause and resume together.
//              Pause takes the physical pages away; contents are kept on the host, on disk, or
//              discarded, by the tag's Policy. Resume maps pages at the same address and restores.
//              Freed pages stay in the PageStore, where the next resume finds them without a driver
//              call. A budget limits the store; release_store() empties it.
//
// Threads      every call from any thread. The table lock is never held across a copy, a wait or a
//              callback. A region that moves is kPausing or kResuming; a second call for its tag waits.
//
// Transactions pause, resume and exchange check, secure everything (pages, host buffers), then commit.
//              A failure leaves the state as it was and names need, free and holders. What cannot be
//              undone (releasing contents without backup) happens last; only an unmap that fails
//              after others can then lose contents that were to be discarded.
//
// Idempotence  pausing a paused tag and resuming a resident one succeed and do nothing.
//
// Cost         per call in docs/arena.md, measured in bench/results.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "trace/event.h"

namespace neap::arena {

/// What happens to a tag's contents while it is paused. Set at creation; a pause can change it.
enum class Policy : int {
  kDiscard = 0,  ///< contents are undefined after resume
  kHost = 1,     ///< kept in host memory
  kDisk = 2,     ///< kept in a file under Options::disk_folder
  kZero = 3,     ///< reads as zeros after resume
};
[[nodiscard]] std::string_view to_string(Policy policy);

enum class State : int { kResident = 0, kPausing = 1, kPaused = 2, kResuming = 3 };
[[nodiscard]] std::string_view to_string(State state);

enum class RegionId : std::uint64_t { kNone = 0 };

struct Options {
  /// Most pages to keep for reuse; the rest is released to the driver.
  Bytes page_store_budget{~0ull};
  /// Soft limit of physical bytes: a page beyond it is created only after kept pages have been released, so that the
  /// store does not raise the peak. Kept pages are also released before any out-of-memory.
  Bytes physical_target{~0ull};
  /// Most host memory for backups; a pause that needs more fails with kOutOfHostMemory. The staging buffers of disk
  /// backups, 64 MiB at most, are not counted.
  Bytes host_budget{~0ull};
  /// Keep the backups' memory for the next cycle. If false, resume returns it to the system.
  bool keep_host_buffers = true;
  std::string
      disk_folder;  ///< for Policy::kDisk and DiskStorage; empty: the system's temporary folder
  /// Disk backups are one named file for each region, kept until the region is destroyed, in place of
  /// an unnamed one for each pause.
  bool named_disk_files = false;
  trace::EventSink* events = nullptr;  ///< outlives the arena; may be null
  unsigned touch_threads = 0;          ///< first touch of backups; 0: one for two cores, at most 8
};

struct RegionInfo {
  RegionId id = RegionId::kNone;
  std::string tag;
  device::Address address = 0;
  Bytes requested;
  Bytes size;    ///< requested, rounded up to the granularity
  Bytes mapped;  ///< physically there now
  State state = State::kResident;
  Policy policy = Policy::kDiscard;
  /// Grows each time new pages are mapped. Users of raw mappings compare it.
  std::uint64_t generation = 0;
  bool kept = false;  ///< stays resident, by keep_resident
};

struct TagStats {
  std::string tag;
  std::uint64_t regions = 0;
  Bytes virtual_bytes, mapped;
  Bytes host, disk;  ///< backups, and storage there
  std::uint64_t pauses = 0, resumes = 0, failures = 0;
  Bytes copied_to_host, copied_to_device;
  double pause_seconds = 0, resume_seconds = 0;  ///< sums
  double last_pause_seconds = 0, last_resume_seconds = 0;
};
struct Stats {
  std::vector<TagStats> tags;
  Bytes page_store;  ///< kept pages, not mapped
  Bytes physical;    ///< all pages that this arena holds, including the store's
  Bytes peak_physical;
  Bytes host_buffers;  ///< backup memory held, in use or kept
  std::uint64_t driver_creates = 0, driver_releases = 0, store_hits = 0;
};

/// One page of an exported region, in address order. The holder closes the descriptor.
struct ExportedPage {
  int descriptor = -1;
  Bytes offset;  ///< from the region's address
  Bytes size;
  Bytes lead{};  ///< part of the first page before the region (small regions share pages)
};

/// What a pause or resume did.
struct MoveReport {
  Bytes bytes;  ///< that left or entered the device
  Bytes copied;
  std::uint64_t regions = 0;
  double seconds = 0;       ///< in the arena's calls
  double copy_seconds = 0;  ///< of a ticket: of the device, from its first copy to its last
};

/// A move that was begun: its copies run while the caller goes on. Its tags count as moving until it is finished: a
/// second move of them waits, so the thread that holds the ticket finishes it first.
///
/// Threads   one at a time, which need not be the thread that began it. The arena outlives it.
/// Failure   of the destructor, which finishes what was not finished: only logged.
class Ticket {
 public:
  Ticket() = default;
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  virtual ~Ticket() = default;
  /// Waits for the copies and commits. A failure leaves the state from before the move was begun. Once.
  [[nodiscard]] virtual Result<MoveReport> finish() = 0;
};

/// What to wait for before anything is unmapped.
struct Fence {
  enum class Kind { kDevice, kStreams, kNone } kind = Kind::kDevice;
  std::vector<device::StreamId> streams;  ///< for kStreams
  static Fence whole_device() { return {}; }
  static Fence none() { return {Kind::kNone, {}}; }  ///< the caller has synchronized
  static Fence of(std::vector<device::StreamId> s) { return {Kind::kStreams, std::move(s)}; }
};

struct PauseOptions {
  std::optional<Policy> policy{};  ///< overrides the tags' own for this pause and later ones
  Fence fence{};
  /// The contents equal the host copy that the last pause kept (frozen weights), so nothing is copied out. Ignored if
  /// there is no such copy.
  bool unchanged = false;
  bool release_pages = false;  ///< to the driver instead of the page store
};
struct ResumeOptions {
  /// How long to wait for another process to free memory. Other moves of the same tags wait as well.
  std::chrono::milliseconds wait{0};
};

/// Called before pages leave and after pages have come, for code that registered addresses elsewhere
/// (NCCL, RDMA, IPC). They run without locks on the moving thread and must not throw. If before_unmap
/// fails, the pause stops and the state is as before. Listeners may call the arena; a call that would
/// wait for a move returns kBusy. create, alias and import call no listener; shrink announces the whole
/// region.
struct Callbacks {
  std::function<Status(const RegionInfo&)> before_unmap;
  std::function<Status(const RegionInfo&)> after_map;
};

class Arena {
 public:
  /// The device outlives the arena.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> make(device::Device& device,
                                                           Options options = {});
  ~Arena();  ///< unmaps and releases everything; logs what the driver refuses
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A resident region of `size` bytes. Leaves nothing behind on failure.
  [[nodiscard]] Result<RegionInfo> create(std::string_view tag, Bytes size,
                                          Policy policy = Policy::kDiscard);
  /// A paused region without pages, to be resumed later.
  [[nodiscard]] Result<RegionInfo> create_paused(std::string_view tag, Bytes size,
                                                 Policy policy = Policy::kDiscard);
  /// A second region over the pages of `source`, with the same size and its own tag: shares weights
  /// without a copy.
  [[nodiscard]] Result<RegionInfo> alias(std::string_view tag, RegionId source);
  /// Descriptors of every page of a resident region, for import_pages in another process. These pages
  /// are not reused: once unmapped they are released to the driver, because importers may still map
  /// them. kBusy unless the whole region is resident.
  [[nodiscard]] Result<std::vector<ExportedPage>> export_pages(RegionId id);
  /// A resident region over pages that another process exported. The caller keeps the descriptors.
  /// Pause and resume leave it alone; destroy unmaps it and releases the pages.
  [[nodiscard]] Result<RegionInfo> import_pages(std::string_view tag,
                                                std::span<const ExportedPage> pages);
  /// Frees a region; waits while it moves. Does not wait for the device: no work may use the region any more.
  /// Its host backup goes back to the system when no other backup lies in the same block.
  /// `release_pages`: to the driver instead of the page store.
  Status destroy(RegionId id, bool release_pages = false);
  /// The region that holds `address`, paused or not. At most 100 ns.
  [[nodiscard]] Result<RegionInfo> find(device::Address address) const;
  /// The same, but returns nullopt on a miss; builds no message.
  [[nodiscard]] std::optional<RegionInfo> look_up(device::Address address) const;
  [[nodiscard]] Result<RegionInfo> info(RegionId id) const;
  [[nodiscard]] std::vector<RegionInfo> regions(
      std::string_view tag = {}) const;  ///< empty tag: all

  /// Unmaps every region of the tags (empty list: all). Unknown tags are ignored.
  [[nodiscard]] Result<MoveReport> pause(std::span<const std::string> tags,
                                         const PauseOptions& options = {});
  [[nodiscard]] Result<MoveReport> resume(std::span<const std::string> tags,
                                          const ResumeOptions& options = {});
  /// Pauses `out` while it resumes `in`, reusing pages and using both directions of the link. Peak
  /// memory is the larger of both plus one transfer chunk.
  [[nodiscard]] Result<MoveReport> exchange(std::span<const std::string> out,
                                            std::span<const std::string> in,
                                            const PauseOptions& options = {});
  /// resume() in two halves: this one takes the pages, maps them and queues the copies; a failure leaves the state as
  /// it was. Nothing may touch the tags, which are kResuming, before the ticket is finished.
  [[nodiscard]] Result<std::unique_ptr<Ticket>> begin_resume(std::span<const std::string> tags);
  /// Copies resident tags with Policy::kHost to the host, where they stay resident. Once it is finished, a pause with
  /// PauseOptions::unchanged copies nothing. They may be read meanwhile, and must not be written until that pause.
  /// `fence`: what wrote them.
  [[nodiscard]] Result<std::unique_ptr<Ticket>> begin_backup(std::span<const std::string> tags,
                                                             const Fence& fence = {});
  /// Releases or restores the pages of [offset, offset+size) of one region (elastic KV cache). shrink
  /// rounds the borders inwards, grow outwards.
  [[nodiscard]] Result<MoveReport> shrink(RegionId id, Bytes offset, Bytes size,
                                          const Fence& fence = {});
  [[nodiscard]] Result<MoveReport> grow(RegionId id, Bytes offset, Bytes size);
  /// Pauses and exchanges leave a kept region mapped. For memory whose pages others use and cannot release (buffers
  /// that NCCL registered in a captured CUDA graph). Whole pages stay, so small regions that share a page stay as
  /// well; before the first pause no regions share pages. Ends with `keep` false or with the region. Returns the bytes
  /// that stay, 0 for `keep` false. kBusy unless the whole region is resident.
  [[nodiscard]] Result<Bytes> keep_resident(RegionId id, bool keep = true);
  /// Limits the page size of the tag's later moves, which is the step of shrink and grow. Smaller
  /// pages make whole pauses slower.
  void set_page_limit(std::string_view tag, Bytes most);

  /// Allocates, touches and pins now the host memory that the tags' next pause needs.
  Status prepare(std::span<const std::string> tags);
  /// The host copy of a region that is paused or whose buffer is kept; null without one.
  [[nodiscard]] const void* host_copy(RegionId id) const;

  /// Releases kept pages to the driver until the store holds at most `keep`. Returns the bytes released.
  [[nodiscard]] Result<Bytes> release_store(Bytes keep = Bytes(0));
  void set_page_store_budget(Bytes budget);
  /// What becomes of the buffers of resident regions when they are no longer to be kept.
  enum class KeptBuffers {
    kReleaseNow,
    kReleaseAtResume,  ///< each with the next resume of its region
  };
  /// Options for backups, for pauses and resumes that begin later; backups that exist stay where
  /// they are until their region resumes. A lower budget takes nothing away.
  void set_backup_options(bool keep_host_buffers, Bytes host_budget, std::string disk_folder,
                          KeptBuffers kept = KeptBuffers::kReleaseNow);

  /// For the end of the process: waits until files that are being closed in the background are
  /// closed, and removes the names of the others.
  void finish_disk_files();

  std::uint64_t add_callbacks(std::string_view tag,
                              Callbacks callbacks);  ///< empty tag: every region
  /// Waits for running calls of the listener, so that what they captured may be freed. Does not wait inside a
  /// listener.
  void remove_callbacks(std::uint64_t id);

  [[nodiscard]] Stats stats() const;
  [[nodiscard]] device::Device& device() const;

  /// Pages for the caching allocator's segments, from the store if one fits, counted as held by `tag`.
  [[nodiscard]] Result<device::PageId> take_page(std::string_view tag, Bytes size);
  void give_page(std::string_view tag, device::PageId page, Bytes size);

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::arena
