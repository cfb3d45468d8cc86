#include "arena/address_space.h"

#include <algorithm>

namespace neap::arena {
namespace {

// The first zone holds several regions like the first one; later zones double.
constexpr std::uint64_t kFirstZoneFactor = 4;
constexpr Bytes kSmallestZone = 1_GiB;

}  // namespace

Result<device::Address> AddressSpace::take(Bytes size) {
  auto fit = by_size_.lower_bound({size.count(), 0});
  if (fit == by_size_.end()) {
    const Bytes granularity = device_.info().granularity;
    // A page that is never used ends each zone: ranges of two reservations never touch, so that no
    // call meant for one range crosses into another reservation.
    const Bytes guard = granularity;
    Bytes reserved;
    for (const auto& [at, zone] : zones_) reserved += zone.size;
    const Bytes wanted = round_up(std::max({size * kFirstZoneFactor, reserved,
                                            std::min(kSmallestZone, device_.info().capacity)}),
                                  granularity);
    auto at = device_.reserve(wanted + guard, Bytes(0));
    Bytes got = wanted;
    if (!at.ok()) {
      got = size;
      at = device_.reserve(size + guard, Bytes(0));
    }
    if (!at.ok()) return at.status();
    zones_.emplace(*at, Zone{*at, got, guard, Bytes(0)});
    add_hole(*at, got);
    fit = by_size_.lower_bound({size.count(), 0});
  }
  const device::Address at = fit->second;
  const Bytes hole(fit->first);
  remove_hole(holes_.find(at));
  if (hole > size) add_hole(at + size.count(), hole - size);
  zone_of(at).used += size;
  return at;
}

void AddressSpace::give(device::Address at, Bytes size) {
  Zone& zone = zone_of(at);
  zone.used -= size;
  // Neighbours merge, but never over the border of a zone: zones are given back one by one.
  auto next = holes_.lower_bound(at);
  if (next != holes_.end() && next->first == at + size.count() &&
      next->first < zone.at + zone.size.count()) {
    size += next->second;
    remove_hole(next);
  }
  auto before = holes_.lower_bound(at);
  if (before != holes_.begin() && (--before)->first >= zone.at &&
      before->first + before->second.count() == at) {
    at = before->first;
    size += before->second;
    remove_hole(before);
  }
  add_hole(at, size);
}

Status AddressSpace::clear() {
  Status first;
  for (auto it = zones_.begin(); it != zones_.end();) {
    const Zone zone = it->second;
    if (!zone.used.is_zero()) {
      ++it;
      continue;
    }
    if (Status status = device_.unreserve(zone.at, zone.size + zone.guard); !status.ok()) {
      if (first.ok()) first = std::move(status);
      ++it;
      continue;
    }
    remove_hole(holes_.find(zone.at));
    it = zones_.erase(it);
  }
  return first;
}

void AddressSpace::add_hole(device::Address at, Bytes size) {
  holes_.emplace(at, size);
  by_size_.emplace(size.count(), at);
}

void AddressSpace::remove_hole(Holes::iterator it) {
  by_size_.erase({it->second.count(), it->first});
  holes_.erase(it);
}

AddressSpace::Zone& AddressSpace::zone_of(device::Address at) {
  return std::prev(zones_.upper_bound(at))->second;
}

}  // namespace neap::arena
