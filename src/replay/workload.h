// The requests of a recorded program to its allocator, independent of the settings.
//
// Model     A workload has the state before the first event, rewound from the final segments, and a
//           sequence of operations on numbered blocks. Replays with the recorded settings and with
//           others use the same sequence.
//
// Threads   read-only after prepare(): any number of replays share one.
//
// Failure   prepare() fails only for a missing device. Contradictions in a recording are counted in
//           `anomalies`, and the replay continues.
//
// Cost      24 bytes per event, 24 per block; prepare() takes 40 to 80 ns per event.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/caching_allocator.h"
#include "trace/recording.h"

namespace neap::replay {

enum class OpKind : std::uint8_t {
  kAlloc,
  kFree,         ///< requested and completed at once
  kRequestFree,  ///< completion follows later, because another stream used the block
  kCompleteFree,
  kSegmentAlloc,  ///< calls of the recorded allocator, for the fidelity check only
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kRecordedEmptyCache,  ///< before the first release of a burst that looks like empty_cache
  kOom,
  kReleasePool,  ///< block = pool whose owner was destroyed; its free segments can be released
  kPhaseBegin,   ///< block = phase number
  kPhaseEnd,
};

struct Op {
  std::uint64_t size = 0;   ///< requested bytes of an allocation, real bytes of a segment
  std::uint32_t block = 0;  ///< number of a block or phase
  std::uint32_t event = 0;  ///< index in DeviceRecording::events
  std::uint16_t route = 0;
  OpKind kind = OpKind::kAlloc;
};
static_assert(sizeof(Op) == 24);

/// Target of an allocation: its stream and private pool.
struct Route {
  cache::Stream stream = 0;
  std::uint32_t pool = 0;
  bool operator==(const Route&) const = default;
};

inline constexpr std::uint32_t kNoPhase = ~0u;
inline constexpr std::uint32_t kNoEvent = ~0u;

struct BlockLife {
  std::uint64_t requested = 0;
  std::uint32_t birth_event = kNoEvent;  ///< kNoEvent: live before the first event
  std::uint32_t birth_phase = kNoPhase;  ///< index in Workload::phases
  std::uint32_t death_phase = kNoPhase;
  bool dies = false;
  std::uint16_t route = 0;
};

/// One execution of a phase.
struct PhaseRun {
  std::uint32_t name = 0;  ///< index in Workload::phase_names
  std::uint32_t first_event = 0;
  std::uint32_t last_event = 0;
};

/// Gaps and contradictions in the recording.
struct Anomalies {
  std::uint64_t allocs_over_live = 0;       ///< an alloc at an address that was still in use
  std::uint64_t frees_of_unknown = 0;       ///< a free that matches no block
  std::uint64_t allocs_never_freed = 0;     ///< not live at the end, but without a recorded free
  std::uint64_t segments_inconsistent = 0;  ///< segment events that match no segment
  [[nodiscard]] std::uint64_t total() const {
    return allocs_over_live + frees_of_unknown + allocs_never_freed + segments_inconsistent;
  }
};

struct Workload {
  const trace::Recording* recording = nullptr;
  const trace::DeviceRecording* device = nullptr;
  std::vector<Op> ops;
  std::vector<BlockLife> blocks;  ///< the first `initial_blocks` lived before the first event
  std::uint32_t initial_blocks = 0;
  std::vector<cache::Address> initial_addresses;
  std::vector<bool> initial_pending;
  std::vector<cache::CachingAllocator::SegmentView> initial_segments;
  std::vector<cache::CachingAllocator::Reservation> initial_reservations;
  std::vector<Route> routes;
  std::vector<std::string> phase_names;
  std::vector<PhaseRun> phases;
  cache::Settings settings;  ///< recorded
  cache::PolicyVersion version;
  Anomalies anomalies;
  std::uint64_t allocator_events = 0;  ///< without marks
  std::uint64_t segment_events = 0;
  /// Blocks live before the first event whose sizes were derived from their neighbours.
  std::uint64_t guessed_sizes = 0;
  bool uses_private_pools = false;
  /// Segments whose private pool was inferred (pool_inference.h).
  std::uint64_t inferred_segments = 0;
  std::vector<std::string> notes;  ///< for people, one sentence each

  /// Number of the route, which is added if it is new.
  std::uint16_t route(const Route& wanted);
  [[nodiscard]] bool starts_empty() const { return initial_segments.empty(); }
  [[nodiscard]] const std::string& phase_name(std::uint32_t phase) const {
    static const std::string kNone = "(no phase)";
    return phase == kNoPhase ? kNone : phase_names[phases[phase].name];
  }
};

/// A phase that begins at a time, or with the first allocation by a function.
struct PhaseAt {
  std::string name;
  std::uint64_t time_ns = 0;
  std::string function;  ///< if set: allocations whose stack contains it belong to this phase
  /// Parses "NAME=1.5s", "NAME=200ms" or "NAME=@FUNCTION".
  [[nodiscard]] static Result<PhaseAt> parse(std::string_view text);
};

struct PrepareOptions {
  std::vector<PhaseAt> phases_at;  ///< if not empty: replaces the recorded phases
  Bytes capacity;                  ///< the device's memory, zero when unknown
};

[[nodiscard]] Result<Workload> prepare(const trace::Recording& recording,
                                       const trace::DeviceRecording& device,
                                       const PrepareOptions& options = {});

/// The policy of the PyTorch version that wrote a recording, as far as the recording shows it.
[[nodiscard]] cache::PolicyVersion recorded_version(const trace::Recording& recording,
                                                    std::vector<std::string>* notes);
/// The allocator settings stored in a snapshot.
[[nodiscard]] cache::Settings recorded_settings(const trace::Recording& recording,
                                                std::vector<std::string>* notes);

}  // namespace neap::replay
