// Pages that no range uses now, kept by exact size for whoever asks next, and the count of all
// pages that the arena holds.
//
// Threads   any; one lock, never held across a driver call.
// Failure   take fails with the device's own status after every kept page has gone back to the
//           driver; what take_all created goes back, too, and leaves the device to others. A page
//           that the driver refuses to release stays kept (an exported one serves nobody): nothing
//           is lost track of.
// Cost      a hit is a map lookup; a miss is one create.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "arena/journal.h"
#include "arena/page_plan.h"
#include "device/device.h"

namespace neap::arena {

struct Page {
  device::PageId id = device::PageId::kNone;
  Bytes size;
  bool stuck =
      false;  ///< mapped by a move that failed and could not unmap it, maybe without access
};

class PageStore {
 public:
  struct Counts {
    Bytes kept, physical, peak_physical;
    std::uint64_t creates = 0, releases = 0, hits = 0;
  };

  PageStore(device::Device& device, Journal& journal, Bytes budget, Bytes physical_target)
      : device_(device), journal_(journal), budget_(budget), target_(physical_target) {}

  /// A kept page of exactly `size`, or a new one.
  [[nodiscard]] Result<Page> take(Bytes size);
  /// All of `sizes` or none.
  [[nodiscard]] Result<std::vector<Page>> take_all(const std::vector<Bytes>& sizes);
  /// Only what is kept.
  [[nodiscard]] bool take_kept(Bytes size, Page& page);
  /// Ends one use of each page. Those without a use are kept, or go to the driver when asked,
  /// exported, or over the budget.
  void give(const std::vector<Page>& pages, bool to_driver = false);

  /// One more range uses the page.
  void share(device::PageId page);
  /// Another process may map the page: it never serves anyone else again.
  void mark_exported(device::PageId page);

  /// Neither shared nor exported: it may serve another range at once.
  [[nodiscard]] bool is_private(device::PageId page) const;

  /// Releases kept pages until at most `keep` are left; holds how many bytes went.
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
  /// Releases kept pages, largest first, until `bytes` are gone or none is left.
  Result<Bytes> release_some(Bytes bytes);
  /// One page to the driver; whether it took it.
  Status release(const Page& page);

  device::Device& device_;
  Journal& journal_;
  mutable std::mutex mutex_;
  Bytes budget_;
  Bytes target_;
  std::map<std::uint64_t, std::vector<device::PageId>> kept_;
  std::unordered_map<std::uint64_t, Special> special_;
  std::vector<Page> refused_;  ///< exported pages that the driver did not take back: asked again
  Counts counts_;
};

}  // namespace neap::arena
