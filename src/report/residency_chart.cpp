#include "report/residency_chart.h"

#include <algorithm>

namespace neap::report {

using trace::EventKind;

bool Residency::apply(const trace::Event& event) {
  const std::uint64_t begin = event.address, end = event.address + event.size;
  switch (event.kind) {
    case EventKind::kRegionCreate:
      if (has_maps_) {
        claim(begin, end, event.name);
      } else {
        change_(event.name, event.size, true);
      }
      return true;
    case EventKind::kRegionDestroy:
      // Pages that a destroyed region shared with others of its tag stay mapped until their unmap
      // event.
      if (!has_maps_) change_(event.name, event.size, false);
      return true;
    case EventKind::kPause:
    case EventKind::kResume:
      if (!has_maps_) change_(event.name, event.size, event.kind == EventKind::kResume);
      return true;
    case EventKind::kMap:
      map(begin, end);
      return true;
    case EventKind::kUnmap:
      unmap(begin, end);
      return true;
    default:
      return false;
  }
}

std::map<std::uint64_t, Residency::Range>::iterator Residency::first_overlap(
    std::map<std::uint64_t, Range>& ranges, std::uint64_t begin) {
  auto it = ranges.upper_bound(begin);
  if (it == ranges.begin()) return it;
  const auto before = std::prev(it);
  return before->second.end > begin ? before : it;
}

void Residency::map(std::uint64_t begin, std::uint64_t end) {
  if (end <= begin) return;
  unmap(begin, end);  // its unmap event was lost
  const auto region = first_overlap(regions_, begin);
  const bool owned = region != regions_.end() && region->first < end;
  mapped_[begin] = {end, owned ? region->second.tag : 0};
  if (owned) change_(region->second.tag, end - begin, true);
}

void Residency::unmap(std::uint64_t begin, std::uint64_t end) {
  for (auto it = first_overlap(mapped_, begin); it != mapped_.end() && it->first < end;) {
    const std::uint64_t low = it->first;
    const Range range = it->second;
    it = mapped_.erase(it);
    if (low < begin) mapped_[low] = {begin, range.tag};
    if (range.end > end) it = mapped_.insert({end, {range.end, range.tag}}).first;
    const std::uint64_t cut = std::min(end, range.end) - std::max(begin, low);
    if (range.tag != 0) change_(range.tag, cut, false);
  }
}

void Residency::claim(std::uint64_t begin, std::uint64_t end, std::uint32_t tag) {
  if (end <= begin) return;
  for (auto it = first_overlap(regions_, begin); it != regions_.end() && it->first < end;)
    it = regions_.erase(it);  // a region destroyed earlier
  regions_[begin] = {end, tag};
  for (auto it = first_overlap(mapped_, begin); it != mapped_.end() && it->first < end; ++it) {
    Range& range = it->second;
    if (range.tag == tag) continue;
    if (range.tag != 0) change_(range.tag, range.end - it->first, false);
    change_(tag, range.end - it->first, true);
    range.tag = tag;
  }
}

}  // namespace neap::report
