// Tagged regions of device memory. A region keeps its address for life; its pages can be released and
// mapped again.
//
// Model        A region is an address range with a tag. Regions of one tag pause and resume together.
//              Pause releases the physical pages. The tag's Policy says whether contents are kept on the
//              host, kept on disk or discarded. Resume maps pages at the same address and restores the
//              contents. Freed pages stay in the PageStore, where the next resume finds them without a
//              driver call. A budget limits the store; release_store() empties it.
//
// Threads      every call from any thread. The table lock is never held across a copy, a wait or a
//              callback. A region that moves is kPausing or kResuming; a second call for its tag waits.
//
// Transactions pause, resume and exchange first check, then secure pages and host buffers, then commit.
//              A failure leaves the state as it was. Its message names the bytes needed, the free bytes
//              and the holders. Steps that cannot be undone come last (releasing contents without
//              backup). If an unmap fails after others succeeded, contents that were to be discarded may
//              be lost.
//
// Idempotence  pausing a paused tag and resuming a resident one succeed and do nothing.
//
// Cost         docs/measurements/arena.md
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

/// How a tag's contents are kept while it is paused. Set at creation; a pause can change it.
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
  /// Maximum of the pages kept for reuse. Pages beyond it are released to the driver.
  Bytes page_store_budget{~0ull};
  /// Soft limit of physical bytes. Before a page beyond it is created, kept pages are released, so
  /// that the store does not raise the peak. Kept pages are also released before the arena reports
  /// out of memory.
  Bytes physical_target{~0ull};
  /// Maximum of the host memory for backups. A pause that needs more fails with kOutOfHostMemory.
  /// Staging buffers of disk backups (64 MiB at most) are not counted.
  Bytes host_budget{~0ull};
  /// Keep the backups' host memory for the next pause. If false, resume returns it to the system.
  bool keep_host_buffers = true;
  std::string
      disk_folder;  ///< for Policy::kDisk and DiskStorage; empty: the system's temporary folder
  /// If true, each region has one named backup file, kept until the region is destroyed. If false,
  /// each pause makes an unnamed file.
  bool named_disk_files = false;
  trace::EventSink* events = nullptr;  ///< outlives the arena; may be null
  unsigned touch_threads = 0;          ///< for touching new backups; 0: one per two cores, at most
                                       ///< 8
};

struct RegionInfo {
  RegionId id = RegionId::kNone;
  std::string tag;
  device::Address address = 0;
  Bytes requested;
  Bytes size;    ///< requested, rounded up to the granularity
  Bytes mapped;  ///< physically mapped now
  State state = State::kResident;
  Policy policy = Policy::kDiscard;
  /// Grows each time new pages are mapped. Users of raw mappings compare it to detect that.
  std::uint64_t generation = 0;
  bool kept = false;  ///< keep_resident: pauses leave it resident
};

struct TagStats {
  std::string tag;
  std::uint64_t regions = 0;
  Bytes virtual_bytes, mapped;
  Bytes host, disk;  ///< backups and storage in host memory and on disk
  std::uint64_t pauses = 0, resumes = 0, failures = 0;
  Bytes copied_to_host, copied_to_device;
  double pause_seconds = 0, resume_seconds = 0;  ///< sums over all calls
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
  Bytes offset;  ///< of the page from the region's address
  Bytes size;
  Bytes lead{};  ///< bytes of the first page before the region (small regions share pages)
};

/// Result of a pause or resume.
struct MoveReport {
  Bytes bytes;  ///< bytes that left or entered the device
  Bytes copied;
  std::uint64_t regions = 0;
  double seconds = 0;       ///< spent in the arena's calls
  double copy_seconds = 0;  ///< of a ticket: device time from its first copy to its last
};

/// A started move whose copies run while the caller continues. Its tags count as moving until
/// finish(). A second move of these tags waits, so the thread that holds the ticket must call
/// finish() first.
///
/// Threads   one at a time; it need not be the thread that began the move. The arena outlives the
///           ticket.
///
/// Failure   the destructor finishes an unfinished move and only logs a failure.
class Ticket {
 public:
  Ticket() = default;
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  virtual ~Ticket() = default;
  /// Waits for the copies and commits. On failure, restores the state from before the move. Call it
  /// once.
  [[nodiscard]] virtual Result<MoveReport> finish() = 0;
};

/// Device work to wait for before anything is unmapped.
struct Fence {
  enum class Kind { kDevice, kStreams, kNone } kind = Kind::kDevice;
  std::vector<device::StreamId> streams;             ///< for kStreams
  static Fence none() { return {Kind::kNone, {}}; }  ///< the caller has already synchronized
  static Fence of(std::vector<device::StreamId> s) { return {Kind::kStreams, std::move(s)}; }
};

struct PauseOptions {
  std::optional<Policy> policy{};  ///< overrides the tags' own policy for this pause and later ones
  Fence fence{};
  /// The contents equal the host copy that the last pause kept (frozen weights), so nothing is
  /// copied. Ignored without such a copy.
  bool unchanged = false;
  bool release_pages = false;  ///< releases pages to the driver instead of the page store
};
struct ResumeOptions {
  /// How long to wait for another process to free memory. Other moves of the same tags wait as well.
  std::chrono::milliseconds wait{0};
};

/// Listeners for code that registered addresses elsewhere (NCCL, RDMA, IPC). They are called before
/// pages leave and after pages are mapped.
///
/// Threads   on the moving thread, without locks. Listeners may call the arena. A call that would
///           wait for a move returns kBusy.
///
/// Failure   must not throw. If before_unmap fails, the pause stops and the former state is
///           restored.
///
/// create, alias and import call no listener. shrink reports the whole region.
struct Callbacks {
  std::function<Status(const RegionInfo&)> before_unmap;
  std::function<Status(const RegionInfo&)> after_map;
};

class Arena {
 public:
  /// `device` outlives the arena.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> make(device::Device& device,
                                                           Options options = {});
  ~Arena();  ///< unmaps and releases everything; logs what the driver refuses
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes a resident region of `size` bytes. A failure leaves nothing behind.
  [[nodiscard]] Result<RegionInfo> create(std::string_view tag, Bytes size,
                                          Policy policy = Policy::kDiscard);
  /// Makes a paused region without pages. resume() maps them.
  [[nodiscard]] Result<RegionInfo> create_paused(std::string_view tag, Bytes size,
                                                 Policy policy = Policy::kDiscard);
  /// Makes a second region over the pages of `source`, with the same size and its own tag. Weights
  /// can be shared this way without a copy.
  [[nodiscard]] Result<RegionInfo> alias(std::string_view tag, RegionId source);
  /// Returns descriptors of every page of a resident region, for import_pages in another process.
  /// Exported pages are not reused: importers may still map them, so they are released to the
  /// driver once unmapped. kBusy unless the whole region is resident.
  [[nodiscard]] Result<std::vector<ExportedPage>> export_pages(RegionId id);
  /// Makes a resident region over pages that another process exported. The caller keeps the
  /// descriptors. Pause and resume skip the region; destroy unmaps it and releases the pages.
  [[nodiscard]] Result<RegionInfo> import_pages(std::string_view tag,
                                                std::span<const ExportedPage> pages);
  /// Frees a region and waits while it moves. It does not wait for the device: no device work may
  /// use the region any more. The host backup returns to the system when no other backup is in the
  /// same block. `release_pages`: pages go to the driver instead of the page store.
  Status destroy(RegionId id, bool release_pages = false);
  /// The region that holds `address`, paused or not. At most 100 ns.
  [[nodiscard]] Result<RegionInfo> find(device::Address address) const;
  /// As find(), but returns nullopt on a miss and builds no message.
  [[nodiscard]] std::optional<RegionInfo> look_up(device::Address address) const;
  [[nodiscard]] Result<RegionInfo> info(RegionId id) const;
  [[nodiscard]] std::vector<RegionInfo> regions(
      std::string_view tag = {}) const;  ///< empty tag: all

  /// Unmaps every region of the tags (empty list: all). Unknown tags are ignored.
  [[nodiscard]] Result<MoveReport> pause(std::span<const std::string> tags,
                                         const PauseOptions& options = {});
  [[nodiscard]] Result<MoveReport> resume(std::span<const std::string> tags,
                                          const ResumeOptions& options = {});
  /// Pauses `out` while it resumes `in`. Pages are reused, and both directions of the link are
  /// busy. Peak memory is the larger of both plus one transfer chunk.
  [[nodiscard]] Result<MoveReport> exchange(std::span<const std::string> out,
                                            std::span<const std::string> in,
                                            const PauseOptions& options = {});
  /// Starts a resume: takes pages, maps them and queues the copies. A failure leaves the state as
  /// it was. The tags are kResuming; nothing may touch them before the ticket is finished.
  [[nodiscard]] Result<std::unique_ptr<Ticket>> begin_resume(std::span<const std::string> tags);
  /// Starts to copy resident tags with Policy::kHost to the host; they stay resident. After the
  /// ticket is finished, a pause with PauseOptions::unchanged copies nothing. The tags may be read
  /// meanwhile, but must not be written until that pause. `fence`: the work that wrote them.
  [[nodiscard]] Result<std::unique_ptr<Ticket>> begin_backup(std::span<const std::string> tags,
                                                             const Fence& fence = {});
  /// shrink releases and grow restores the pages of [offset, offset+size) of one region (elastic KV
  /// cache). shrink rounds the borders inwards, grow outwards.
  [[nodiscard]] Result<MoveReport> shrink(RegionId id, Bytes offset, Bytes size,
                                          const Fence& fence = {});
  [[nodiscard]] Result<MoveReport> grow(RegionId id, Bytes offset, Bytes size);
  /// Keeps a region mapped through pauses and exchanges. For memory whose pages others use and
  /// cannot release (buffers that NCCL registered in a captured CUDA graph). Whole pages stay, so
  /// small regions that share a page also stay; before the first pause no regions share pages. Ends
  /// with `keep` false or with the region. Returns the bytes that stay, 0 for `keep` false. kBusy
  /// unless the whole region is resident.
  [[nodiscard]] Result<Bytes> keep_resident(RegionId id, bool keep = true);
  /// Limits the page size of the tag's later moves. shrink and grow work in steps of a page.
  /// Smaller pages make whole pauses slower.
  void set_page_limit(std::string_view tag, Bytes most);

  /// Allocates, touches and pins the host memory of the tags' next pause in advance.
  Status prepare(std::span<const std::string> tags);
  /// The host copy of a region that is paused or whose buffer is kept; null without a copy.
  [[nodiscard]] const void* host_copy(RegionId id) const;

  /// Releases kept pages to the driver until the store holds at most `keep`. Returns the bytes released.
  [[nodiscard]] Result<Bytes> release_store(Bytes keep = Bytes(0));
  void set_page_store_budget(Bytes budget);
  /// When host buffers of resident regions are released after keep_host_buffers is turned off.
  enum class KeptBuffers {
    kReleaseNow,
    kReleaseAtResume,  ///< at the next resume of its region
  };
  /// Sets options for later pauses and resumes. Existing backups stay where they are until their
  /// region resumes. A lower budget releases nothing.
  void set_backup_options(bool keep_host_buffers, Bytes host_budget, std::string disk_folder,
                          KeptBuffers kept = KeptBuffers::kReleaseNow);

  /// Call at the end of the process. Waits for files that are being closed in the background, and
  /// removes the names of the others.
  void finish_disk_files();

  std::uint64_t add_callbacks(std::string_view tag,
                              Callbacks callbacks);  ///< empty tag: every region
  /// Waits for running calls of the listener, so that the caller may free what they captured. Does
  /// not wait when called inside a listener.
  void remove_callbacks(std::uint64_t id);

  [[nodiscard]] Stats stats() const;
  [[nodiscard]] device::Device& device() const;

  /// Pages for the caching allocator's segments. They come from the store if one fits, and count as
  /// held by `tag`.
  [[nodiscard]] Result<device::PageId> take_page(std::string_view tag, Bytes size);
  void give_page(std::string_view tag, device::PageId page, Bytes size);

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::arena
