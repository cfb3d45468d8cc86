// Memory of one device over time, from its events: how much was held, by which tag, in which phase.
//
// Model     A *layer* is a band of the stack: a tag's resident bytes, or the live blocks allocated
//           in one phase. The trace is cut into *leaves* of consecutive events. A leaf stores the
//           whole stack at its highest point, the lowest total, and the minimum and maximum of
//           reserved. With at most kMaxLeaves events a leaf is one event and nothing is lost. With
//           more events every peak is still exact, but the order within a leaf is lost.
//
// Threads   build is single-threaded; the result is plain data.
//
// Cost      about 0.3 µs per event; 8 (layers + 8) bytes per leaf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "report/segment_map.h"
#include "trace/recording.h"

namespace neap::report {

inline constexpr std::size_t kMaxLeaves = 1u << 17;

struct Layer {
  enum class Kind { kTag, kBirthPhase };
  Kind kind = Kind::kTag;
  std::string name;  ///< tag, or allocating phase ("" = outside of any phase)
  std::uint64_t peak = 0;
};

/// A period of the trace in one phase. Nested phases have their own spans.
struct PhaseSpan {
  std::string name;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint32_t depth = 0;
  // Within the span:
  std::uint64_t peak_reserved = 0, peak_total = 0;
  std::uint64_t fragmentation = 0;  ///< maximum at a driver allocation
  std::uint64_t driver_allocs = 0, driver_frees = 0;
  std::uint64_t copied = 0;  ///< over the link, both directions
};

/// An allocation from the device by the caching allocator.
struct DriverAllocation {
  std::uint64_t time_ns = 0;
  std::uint64_t event = 0;
  std::uint64_t size = 0;
  std::uint64_t reserved = 0;  ///< after the allocation
  /// Reserved before the allocation minus the requested bytes of live blocks: the paper's
  /// definition.
  std::uint64_t fragmentation = 0;
};

struct Leaves {
  std::size_t layer_count = 0;
  std::vector<std::uint64_t> begin_ns;     ///< a leaf lasts until the next one begins
  std::vector<std::uint64_t> first_event;  ///< index in DeviceRecording::events
  std::vector<std::uint64_t> peak_ns;      ///< time of the highest total
  std::vector<std::uint64_t> stack;        ///< layer_count values per leaf, at that time
  std::vector<std::uint64_t> total_high, total_low;
  std::vector<std::uint64_t> reserved_high, reserved_low;
  [[nodiscard]] std::size_t size() const { return begin_ns.size(); }
};

struct History {
  std::vector<Layer> layers;
  Leaves leaves;
  std::vector<PhaseSpan> phases;  ///< sorted by begin
  std::vector<DriverAllocation> driver_allocations;
  std::uint64_t end_ns = 0;
  std::uint64_t events = 0;

  std::uint64_t peak_total = 0, peak_total_ns = 0, peak_total_event = 0;
  std::uint64_t peak_reserved = 0, peak_reserved_ns = 0, peak_reserved_event = 0;
  /// Peak of (reserved - fragmentation) over all driver allocations, and its time.
  std::uint64_t peak_without_fragmentation = 0, peak_without_fragmentation_ns = 0;
  std::uint64_t fragmentation_at_peak = 0, fragmentation_max = 0;
  std::uint64_t driver_allocs = 0, driver_frees = 0, ooms = 0;
  std::uint64_t copied = 0;
  std::uint64_t unmatched_frees = 0;   ///< frees of blocks whose allocation is not in the trace
  bool started_in_the_middle = false;  ///< the beginning is lost; its state was rewound
  std::vector<SegmentMap> maps;        ///< as requested by HistoryOptions::capture_events
  bool physical = false;  ///< reserved counts pages of the device, not segments of the allocator

  /// Peak reserved minus the peak of reserved without fragmentation: the paper's overhead.
  [[nodiscard]] std::uint64_t fragmentation_overhead() const {
    return peak_reserved > peak_without_fragmentation ? peak_reserved - peak_without_fragmentation
                                                      : 0;
  }
};

struct HistoryOptions {
  std::size_t max_leaves = kMaxLeaves;
  std::size_t max_birth_layers = 24;  ///< phases with their own layer; the others share one
  /// The state directly after each of these events is stored as a map. Indexes are ascending.
  std::vector<std::uint64_t> capture_events;
};

[[nodiscard]] History build_history(const trace::Recording& recording,
                                    const trace::DeviceRecording& device,
                                    const HistoryOptions& options = {});

}  // namespace neap::report
