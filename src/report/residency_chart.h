// Computes from the arena's events which tag's memory is mapped.
//
// Map and unmap events of the device tell what is mapped. Region events tell the tag of the
// addresses. Both may come first. In traces without map events (from other writers), pause and
// resume events are used.
//
// Threads   the caller locks.
//
// Cost      a tree search per event.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "trace/recording.h"

namespace neap::report {

class Residency {
 public:
  /// `has_maps`: the trace has map events. `change(tag, bytes, more)` is called for every change;
  /// `more` tells growth.
  using Change = std::function<void(std::uint32_t tag, std::uint64_t bytes, bool more)>;
  Residency(bool has_maps, Change change) : has_maps_(has_maps), change_(std::move(change)) {}
  /// True if the event is one of the arena's that change what is resident.
  bool apply(const trace::Event& event);

 private:
  struct Range {
    std::uint64_t end = 0;
    std::uint32_t tag = 0;  ///< 0: no tag
  };
  void map(std::uint64_t begin, std::uint64_t end);
  void unmap(std::uint64_t begin, std::uint64_t end);
  /// Assigns the addresses to `tag`, including memory that is already mapped there.
  void claim(std::uint64_t begin, std::uint64_t end, std::uint32_t tag);
  static std::map<std::uint64_t, Range>::iterator first_overlap(
      std::map<std::uint64_t, Range>& ranges, std::uint64_t begin);

  bool has_maps_;
  Change change_;
  std::map<std::uint64_t, Range> mapped_;  ///< disjoint
  std::map<std::uint64_t, Range>
      regions_;  ///< disjoint; destroyed regions stay until their addresses are reused
};

}  // namespace neap::report
