#include "arena/address_space.h"

#include <algorithm>

namespace neap::arena {
namespace {

// The first zone has room for several regions of the first region's size. Each later zone is twice
// as large.
constexpr std::uint64_t kFirstZoneFactor = 4;
constexpr Bytes kSmallestZone = 1_GiB;

}  // namespace

Result<device::Address> AddressSpace::take(Bytes size) {
  auto at = holes_.take(size);
  if (!at) {
    const Bytes granularity = device_.info().granularity;
    // Each zone ends with a page that is never used. Ranges of two reservations therefore never
    // touch, and no call meant for one range crosses into another reservation.
    const Bytes guard = granularity;
    Bytes reserved;
    for (const auto& [begin, known] : zones_) reserved += known.size;
    const Bytes wanted = round_up(std::max({size * kFirstZoneFactor, reserved,
                                            std::min(kSmallestZone, device_.info().capacity)}),
                                  granularity);
    auto zone = device_.reserve(wanted + guard, Bytes(0));
    Bytes got = wanted;
    if (!zone.ok()) {
      got = size;
      zone = device_.reserve(size + guard, Bytes(0));
    }
    if (!zone.ok()) return zone.status();
    zones_.emplace(*zone, Zone{*zone, got, guard, Bytes(0)});
    holes_.add(*zone, got, *zone, *zone + got.count());
    at = holes_.take(size);
  }
  zone_of(*at).used += size;
  return *at;
}

void AddressSpace::give(device::Address at, Bytes size) {
  Zone& zone = zone_of(at);
  zone.used -= size;
  // No free range crosses a zone border, because zones are returned to the device one by one.
  holes_.add(at, size, zone.at, zone.at + zone.size.count());
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
    holes_.remove(zone.at, zone.size);
    it = zones_.erase(it);
  }
  return first;
}

AddressSpace::Zone& AddressSpace::zone_of(device::Address at) {
  return std::prev(zones_.upper_bound(at))->second;
}

}  // namespace neap::arena
