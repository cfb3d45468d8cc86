// Bookkeeping shared by all devices: reserved ranges, live pages, and mappings.
//
// It rejects what a driver would reject, so that host, sim and cuda report misuse in the same way.
// `native` is the device's own value for a page: a descriptor, a driver handle, or nothing.
//
// Threads   none; the device locks.
//
// Cost      one ordered-map lookup per call, plus one step per page.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace neap::device {

class Ledger {
 public:
  /// Current totals; all zero if the program freed everything.
  struct Usage {
    std::uint64_t reservations = 0, pages = 0, maps = 0;
    Bytes reserved, page_bytes, mapped;
    friend bool operator==(const Usage&, const Usage&) = default;
  };
  struct Mapping {
    Bytes size;
    PageId page = PageId::kNone;
    bool accessible = false;
  };

  Ledger(Bytes granularity, Bytes capacity) : granularity_(granularity), capacity_(capacity) {}

  [[nodiscard]] const Usage& usage() const { return usage_; }
  [[nodiscard]] Bytes free() const { return saturating_sub(capacity_, usage_.page_bytes); }

  Status check_reserve(Bytes size, Bytes alignment) const;
  void add_reservation(Address at, Bytes size);
  Status check_unreserve(Address at, Bytes size) const;
  void remove_reservation(Address at);

  /// Checks the size, and that the capacity has room for one more page.
  Status check_create(Bytes size) const;
  /// `counted` pages count towards the capacity; imported pages count for their exporter.
  PageId add_page(Bytes size, std::uint64_t native, bool counted);
  /// Size and native value of a page that has not been released.
  struct Page {
    Bytes size;
    std::uint64_t native = 0;
  };
  [[nodiscard]] Result<Page> owned_page(PageId page) const;
  [[nodiscard]] bool is_mapped(PageId page) const;
  /// Releases the page. Returns its native value if it has no map left.
  std::optional<std::uint64_t> drop_claim(PageId page);

  Status check_map(Address at, PageId page) const;
  void add_map(Address at, PageId page);
  /// Checks that [at, at+size) is mapped without holes and, if asked, ends at page borders and is accessible.
  Status check_mapped(Address at, Bytes size, bool whole_pages, bool accessible) const;
  void make_accessible(Address at, Bytes size);
  /// Unmaps. Returns the native values of released pages that have no map left.
  std::vector<std::uint64_t> remove_maps(Address at, Bytes size);

  /// Mappings that touch [at, at+size), in address order.
  template <class F>
  void for_each_mapping(Address at, Bytes size, F&& visit) const {
    auto it = maps_.upper_bound(at);
    if (it != maps_.begin() && std::prev(it)->first + std::prev(it)->second.size.count() > at) --it;
    for (; it != maps_.end() && it->first < at + size.count(); ++it) visit(it->first, it->second);
  }
  [[nodiscard]] std::uint64_t native_of(PageId page) const;
  /// Every mapping that is accessible now, in address order.
  [[nodiscard]] std::vector<std::pair<Address, Bytes>> accessible() const;
  /// Native values of all pages, for a device's destructor.
  [[nodiscard]] std::vector<std::uint64_t> natives() const;
  [[nodiscard]] std::vector<std::pair<Address, Bytes>> reservations() const;

 private:
  struct Record {
    Bytes size;
    std::uint64_t native = 0;
    std::uint64_t maps = 0;
    bool claimed = true;
    bool counted = true;
  };
  [[nodiscard]] bool in_reservation(Address at, Bytes size) const;
  std::uint64_t erase_page(std::unordered_map<std::uint64_t, Record>::iterator it);

  Bytes granularity_;
  Bytes capacity_;
  Usage usage_;
  std::map<Address, Bytes> reservations_;
  std::map<Address, Mapping> maps_;
  std::unordered_map<std::uint64_t, Record> pages_;
  std::uint64_t next_page_ = 1;
};

}  // namespace neap::device
