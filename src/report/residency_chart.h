// Which tag's memory is mapped: from the arena's events.
//
// The device's map and unmap events say what is mapped; region events say whose the addresses are,
// in either order. For traces without map events (other writers) pause and resume events decide.
//
// Threads   external locking.
// Cost      a tree search per event.
//
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "trace/recording.h"

namespace neap::report {

class Residency {
 public:
  /// `has_maps`: the trace has map events. `change(tag, bytes, more)` is called for every change.
  using Change = std::function<void(std::uint32_t tag, std::uint64_t bytes, bool more)>;
  Residency(bool has_maps, Change change) : has_maps_(has_maps), change_(std::move(change)) {}
  /// Whether the event was one of the arena's that change what is resident.
  bool apply(const trace::Event& event);

 private:
  struct Range {
    std::uint64_t end = 0;
    std::uint32_t tag = 0;  ///< 0: of no tag
  };
  void map(std::uint64_t begin, std::uint64_t end);
  void unmap(std::uint64_t begin, std::uint64_t end);
  /// The addresses are `tag`'s from now on, and what is mapped there already as well.
  void claim(std::uint64_t begin, std::uint64_t end, std::uint32_t tag);
  static std::map<std::uint64_t, Range>::iterator first_overlap(
      std::map<std::uint64_t, Range>& ranges, std::uint64_t begin);

  bool has_maps_;
  Change change_;
  std::map<std::uint64_t, Range> mapped_;  ///< disjoint
  std::map<std::uint64_t, Range>
      regions_;  ///< disjoint; destroyed ones stay until addresses are reused
};

}  // namespace neap::report
