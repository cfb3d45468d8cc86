// Unmapped pages, kept by exact size for reuse. It also counts all pages that the arena holds.
//
// Threads   any; one lock, never held across a driver call.
//
// Failure   take releases every kept page to the driver before it fails with the device's status.
//           take_all then also releases the pages that it created. A page that the driver refuses
//           to release is kept; an exported page is not reused.
//
// Cost      a hit is a map lookup; a miss is one create.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "arena/event_recorder.h"
#include "arena/page_plan.h"
#include "device/device.h"

namespace neap::arena {

struct Page {
  device::PageId id = device::PageId::kNone;
  Bytes size;
  bool stuck = false;  ///< a failed move left it mapped, maybe without access
};

class PageStore {
 public:
  struct Counts {
    Bytes kept, physical, peak_physical;
    std::uint64_t creates = 0, releases = 0, hits = 0;
  };

  PageStore(device::Device& device, EventRecorder& events, Bytes budget, Bytes physical_target)
      : device_(device), events_(events), budget_(budget), target_(physical_target) {}

  /// Returns a kept page of exactly `size`, or a new one.
  [[nodiscard]] Result<Page> take(Bytes size);
  /// Takes pages of all `sizes`, or none.
  [[nodiscard]] Result<std::vector<Page>> take_all(const std::vector<Bytes>& sizes);
  /// Takes a kept page; creates none.
  [[nodiscard]] bool take_kept(Bytes size, Page& page);
  /// Ends one use of each page. Pages without a use are kept. The driver gets exported pages, pages
  /// over the budget, and all pages if `to_driver`.
  void give(const std::vector<Page>& pages, bool to_driver = false);

  /// Adds a use of the page.
  void share(device::PageId page);
  /// Marks that another process may map the page: it is never reused.
  void mark_exported(device::PageId page);

  /// True if the page is neither shared nor exported, so that it may be reused at once.
  [[nodiscard]] bool is_private(device::PageId page) const;

  /// Releases kept pages until at most `keep` bytes are left. Returns the bytes released.
  [[nodiscard]] Result<Bytes> release_down_to(Bytes keep);
  void set_budget(Bytes budget);
  [[nodiscard]] Inventory kept_by_size() const;
  [[nodiscard]] Counts counts() const;

 private:
  struct Special {
    std::uint64_t extra_uses = 0;
    bool exported = false;
  };
  [[nodiscard]] Result<Page> create(Bytes size);
  /// Releases kept pages, largest first, until `bytes` are released or none is left.
  Result<Bytes> release_some(Bytes bytes);
  /// Releases one page to the driver.
  Status release(const Page& page);

  device::Device& device_;
  EventRecorder& events_;
  mutable std::mutex mutex_;
  Bytes budget_;
  Bytes target_;
  std::map<std::uint64_t, std::vector<device::PageId>> kept_;
  std::unordered_map<std::uint64_t, Special> special_;
  std::vector<Page> refused_;  ///< exported pages that the driver refused to release; retried
  Counts counts_;
};

}  // namespace neap::arena
