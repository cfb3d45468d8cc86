// Tagged regions on a device that keep their address for life while their memory comes and goes.
//
// Model        A Region is an address range with a tag. Regions of one tag pause and resume
// together. Pause takes the
//              physical pages away (contents kept on the host, on disk, or given up, by the tag's
//              Policy); resume maps pages at the same address and restores. Freed pages go to the
//              PageStore, where the next resume finds them without a driver call; a budget caps the
//              store, release_store() empties it.
// Threads      every call from any thread. The table lock is never held across a copy, a wait or a
// callback; a region
//              that moves is kPausing or kResuming, and a second caller of the same tag waits for
//              it.
// Transactions pause, resume and exchange check, secure everything (pages, host buffers), then
// commit. A failure
//              leaves all as it was and says need, free and holders. What cannot be undone
//              (contents after the first unmap without backup) happens only after the last step
//              that can fail.
// Idempotence  pausing what is paused and resuming what is resident succeed and do nothing.
// Cost         stated per call in docs/arena.md, measured in bench/results.
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

/// What becomes of a tag's contents while it is paused. Chosen at creation, changeable at pause
/// time.
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
  /// Pages kept for the next tag; over it they go back to the driver.
  Bytes page_store_budget{~0ull};
  /// Soft ceiling of physical bytes: creating a page beyond it first gives kept pages back, so that the store recycles
  /// but does not raise the high-water mark. Kept pages also go back before any out-of-memory.
  Bytes physical_target{~0ull};
  /// Most host memory for backups; over it pause fails with kOutOfHostMemory. The 64 MiB at most through which disk
  /// backups pass come on top.
  Bytes host_budget{~0ull};
  /// Backups' memory is kept for the next cycle; false gives it back at resume.
  bool keep_host_buffers = true;
  std::string disk_folder;             ///< for Policy::kDisk; empty: the system's temporary folder
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
  /// Grows each time new pages are mapped: users of raw mappings compare it.
  std::uint64_t generation = 0;
  bool kept = false;  ///< by keep_resident
};

struct TagStats {
  std::string tag;
  std::uint64_t regions = 0;
  Bytes virtual_bytes, mapped, host, disk;
  std::uint64_t pauses = 0, resumes = 0, failures = 0;
  Bytes copied_to_host, copied_to_device;
  double pause_seconds = 0, resume_seconds = 0;  ///< sums
  double last_pause_seconds = 0, last_resume_seconds = 0;
};
struct Stats {
  std::vector<TagStats> tags;
  Bytes page_store;  ///< kept pages, not mapped anywhere
  Bytes physical;    ///< all pages that this arena holds from the device, the store's included
  Bytes peak_physical;
  Bytes host_buffers;  ///< backup memory held, in use or kept
  std::uint64_t driver_creates = 0, driver_releases = 0, store_hits = 0;
};

/// One page of an exported region, in address order. Whoever holds it closes the descriptor.
struct ExportedPage {
  int descriptor = -1;
  Bytes offset;  ///< from the region's address
  Bytes size;
  Bytes lead{};  ///< of the first page, what lies before the region (small regions share pages)
};

/// What a pause or resume did.
struct MoveReport {
  Bytes bytes;  ///< that left or came to the device
  Bytes copied;
  std::uint64_t regions = 0;
  double seconds = 0;
};

/// What the caller promises, or wants to be waited for, before anything is unmapped.
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
  /// The contents equal the host copy that the last pause kept (frozen weights): nothing is copied out again. Ignored
  /// where there is no such copy.
  bool unchanged = false;
  bool release_pages = false;  ///< to the driver at once instead of the page store
};
struct ResumeOptions {
  /// How long to wait for another process to give memory back. Other moves of the same tags wait as long.
  std::chrono::milliseconds wait{0};
};

/// Told before pages leave and after pages have come; for those who registered addresses elsewhere
/// (NCCL, RDMA, IPC). Run without locks, on the moving thread; must not throw. A failing before_unmap
/// stops the pause with everything as it was. Listeners may call the arena, but never wait for a move:
/// what would have to gets kBusy. create, alias and import tell nobody; shrink announces the whole region.
struct Callbacks {
  std::function<Status(const RegionInfo&)> before_unmap;
  std::function<Status(const RegionInfo&)> after_map;
};

class Arena {
 public:
  /// The device outlives the arena.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> make(device::Device& device,
                                                           Options options = {});
  ~Arena();  ///< unmaps and releases everything; never fails loudly, logs what the driver refuses
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A resident region of `size` bytes. On failure nothing is left behind.
  [[nodiscard]] Result<RegionInfo> create(std::string_view tag, Bytes size,
                                          Policy policy = Policy::kDiscard);
  /// The same, but without pages: it is born paused (for plans that resume it later).
  [[nodiscard]] Result<RegionInfo> create_paused(std::string_view tag, Bytes size,
                                                 Policy policy = Policy::kDiscard);
  /// A second region over the pages of `source` (same size, own tag): weights handed over without a
  /// copy.
  [[nodiscard]] Result<RegionInfo> alias(std::string_view tag, RegionId source);
  /// Descriptors of every page of a resident region, for import_pages of another process. From then
  /// on these pages never serve another tag: once unmapped they go back to the driver, because
  /// importers may still map them. kBusy unless the whole region is resident.
  [[nodiscard]] Result<std::vector<ExportedPage>> export_pages(RegionId id);
  /// A resident region over pages that another process exported; descriptors stay the caller's. It
  /// holds no contents of its own: pause and resume pass it by, destroy unmaps it and lets the
  /// pages go.
  [[nodiscard]] Result<RegionInfo> import_pages(std::string_view tag,
                                                std::span<const ExportedPage> pages);
  /// Frees a region in any settled state; waits while it moves. Not for the device: the caller knows that no work uses
  /// the region any more.
  /// `release_pages`: to the driver at once instead of the page store.
  Status destroy(RegionId id, bool release_pages = false);
  /// The region that holds `address`, paused or not. At most 100 ns.
  [[nodiscard]] Result<RegionInfo> find(device::Address address) const;
  /// The same for callers to whom none is no failure: nothing is put into words.
  [[nodiscard]] std::optional<RegionInfo> look_up(device::Address address) const;
  [[nodiscard]] Result<RegionInfo> info(RegionId id) const;
  [[nodiscard]] std::vector<RegionInfo> regions(
      std::string_view tag = {}) const;  ///< empty tag: all

  /// Unmaps every region of the tags (empty list: all). Unknown tags are no error: nothing to do.
  [[nodiscard]] Result<MoveReport> pause(std::span<const std::string> tags,
                                         const PauseOptions& options = {});
  [[nodiscard]] Result<MoveReport> resume(std::span<const std::string> tags,
                                          const ResumeOptions& options = {});
  /// Pauses `out` while it resumes `in`, pages and both link directions shared: peak memory is the
  /// larger of both plus one stage.
  [[nodiscard]] Result<MoveReport> exchange(std::span<const std::string> out,
                                            std::span<const std::string> in,
                                            const PauseOptions& options = {});
  /// Gives up or takes back the pages of [offset, offset+size) of one region (elastic KV cache).
  /// Borders are rounded inwards at shrink and outwards at grow.
  [[nodiscard]] Result<MoveReport> shrink(RegionId id, Bytes offset, Bytes size,
                                          const Fence& fence = {});
  [[nodiscard]] Result<MoveReport> grow(RegionId id, Bytes offset, Bytes size);
  /// Pauses and exchanges pass a kept region by: its pages stay mapped where they are. For memory whose pages others
  /// hold on to and cannot be told to let go of (buffers that NCCL registered in a captured CUDA graph). Pages are
  /// kept whole, so small neighbours under the same page stay, too; asked before the first pause there are none.
  /// Ends with `keep` false or with the region. Returns the bytes that stay because of it, 0 when let go. kBusy unless
  /// the whole region is resident.
  [[nodiscard]] Result<Bytes> keep_resident(RegionId id, bool keep = true);
  /// Pages of the tag's later moves are at most this large: the step in which regions shrink and
  /// grow. More, smaller pages make whole pauses dearer.
  void set_page_limit(std::string_view tag, Bytes most);

  /// Allocates, touches and pins the host memory that the tags' next pause needs, now instead of
  /// then.
  Status prepare(std::span<const std::string> tags);
  /// Where the host copy of a paused or backed-up region lies; null when there is none.
  [[nodiscard]] const void* host_copy(RegionId id) const;

  /// Sends kept pages back to the driver until the store holds at most `keep`. Returns what went.
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
  /// Waits for calls under way, so that what they captured may go; from inside a listener it does not.
  void remove_callbacks(std::uint64_t id);

  [[nodiscard]] Stats stats() const;
  [[nodiscard]] device::Device& device() const;

  /// Pages for the caching allocator's segments: from the store if a fit is there, counted under
  /// `tag` as a holder. (cache/ reaches these through ArenaDevice; see arena_device.h.)
  [[nodiscard]] Result<device::PageId> take_page(std::string_view tag, Bytes size);
  void give_page(std::string_view tag, device::PageId page, Bytes size);

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Arena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::arena
