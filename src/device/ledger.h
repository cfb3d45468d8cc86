// The bookkeeping that devices share: what is reserved, which pages live, what is mapped where.
//
// It refuses what a driver would refuse, so that host, sim and cuda answer misuse alike. `native`
// is whatever the device needs to know about a page: a descriptor, a driver handle, nothing.
//
// Threads   none: the device locks around it.
// Cost      one ordered-map lookup a call, plus one step for every page touched.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace neap::device {

class Ledger {
 public:
  /// What is held now; all zero when a program gave everything back.
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

  /// Size and room for one more page.
  Status check_create(Bytes size) const;
  /// `counted` pages take from the capacity; imported ones belong to their exporter's account.
  PageId add_page(Bytes size, std::uint64_t native, bool counted);
  /// Size and native value of a page whose owner has not released it.
  struct Page {
    Bytes size;
    std::uint64_t native = 0;
  };
  [[nodiscard]] Result<Page> owned_page(PageId page) const;
  [[nodiscard]] bool is_mapped(PageId page) const;
  /// Ends the owner's claim; holds the native value when nothing maps the page any more.
  std::optional<std::uint64_t> drop_claim(PageId page);

  Status check_map(Address at, PageId page) const;
  void add_map(Address at, PageId page);
  /// [at, at+size) is mapped without holes and, where asked, cut at page borders and accessible.
  Status check_mapped(Address at, Bytes size, bool whole_pages, bool accessible) const;
  void make_accessible(Address at, Bytes size);
  /// Unbinds; holds the native values of pages that nobody claims or maps any more.
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
  /// Every page, for a device that gives all back when it dies.
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
