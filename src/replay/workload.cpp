#include "replay/workload.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/format.h"
#include "cache/address_map.h"
#include "replay/pool_inference.h"
#include "replay/rewind.h"
#include "trace/phase_marks.h"

namespace neap::replay {
namespace {

using trace::Event;
using trace::EventKind;

/// Tracks phases, from recorded marks or from the user's.
class PhaseTracker {
 public:
  PhaseTracker(Workload& workload, const PrepareOptions& options)
      : workload_(workload), options_(options), marks_(*workload.recording, *workload.device) {
    times_ = options.phases_at;
    std::erase_if(times_, [](const PhaseAt& at) { return !at.function.empty(); });
    std::stable_sort(times_.begin(), times_.end(),
                     [](const PhaseAt& a, const PhaseAt& b) { return a.time_ns < b.time_ns; });
  }

  /// Adds the phase marks before `event`.
  void before(const Event& event, std::uint32_t index) {
    if (!options_.phases_at.empty()) {
      while (next_time_ < times_.size() && times_[next_time_].time_ns <= event.time_ns)
        switch_to(times_[next_time_++].name, index);
      if (event.kind == EventKind::kAlloc && event.name != 0) {
        const std::string& name = name_of_stack(event.name);
        if (!name.empty()) switch_to(name, index);
      }
      return;
    }
    if (marks_.begins_phase(event)) {
      begin(std::string(workload_.recording->names.name(event.name)), index);
    } else if (event.kind == EventKind::kPhaseEnd) {
      const auto name = workload_.recording->names.name(event.name);
      for (std::size_t i = open_.size(); i-- > 0;) {
        if (workload_.phase_names[workload_.phases[open_[i]].name] != name) continue;
        while (open_.size() > i) end(index);
        break;
      }
    }
  }
  void finish(std::uint32_t index) {
    while (!open_.empty()) end(index);
  }
  [[nodiscard]] std::uint32_t current() const { return open_.empty() ? kNoPhase : open_.back(); }
  [[nodiscard]] bool just_ended(std::uint32_t index) const { return ended_at_ + 2 >= index; }

 private:
  void begin(const std::string& name, std::uint32_t index) {
    auto& names = workload_.phase_names;
    auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) at = names.insert(names.end(), name);
    const auto run = static_cast<std::uint32_t>(workload_.phases.size());
    workload_.phases.push_back({static_cast<std::uint32_t>(at - names.begin()), index, index});
    open_.push_back(run);
    workload_.ops.push_back({0, run, index, 0, OpKind::kPhaseBegin});
  }
  void end(std::uint32_t index) {
    workload_.phases[open_.back()].last_event = index;
    workload_.ops.push_back({0, open_.back(), index, 0, OpKind::kPhaseEnd});
    open_.pop_back();
    ended_at_ = index;
  }
  void switch_to(const std::string& name, std::uint32_t index) {
    if (!open_.empty() && workload_.phase_names[workload_.phases[open_.back()].name] == name)
      return;
    if (!open_.empty()) end(index);
    begin(name, index);
  }
  const std::string& name_of_stack(std::uint32_t stack) {
    const auto [at, fresh] = stack_names_.try_emplace(stack);
    if (!fresh) return at->second;
    const auto& recording = *workload_.recording;
    for (const std::uint32_t frame : recording.stacks.stack(stack)) {
      const auto function = recording.names.name(recording.stacks.frame(frame).function);
      for (const PhaseAt& phase : options_.phases_at)
        if (!phase.function.empty() && phase.function == function) return at->second = phase.name;
    }
    return at->second;
  }

  Workload& workload_;
  const PrepareOptions& options_;
  trace::PhaseMarks marks_;
  std::vector<PhaseAt> times_;
  std::size_t next_time_ = 0;
  std::vector<std::uint32_t> open_;
  std::uint32_t ended_at_ = 0;
  std::unordered_map<std::uint32_t, std::string> stack_names_;
};

class Preparer {
 public:
  Preparer(Workload& workload, const PrepareOptions& options)
      : w_(workload), options_(options), phases_(workload, options) {}

  void run() {
    Rewound state = rewind(*w_.device, w_.settings, w_.anomalies);
    detect_padding(state);
    learn_sizes(state, w_);
    lay_out(state, w_);
    find_reservations();
    number_initial_blocks();
    const auto& events = w_.device->events;
    w_.ops.reserve(events.size() + 64);
    for (std::size_t i = 0; i < events.size(); ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      phases_.before(events[i], index);
      const std::uint8_t pool = state.alloc_pools.empty() ? std::uint8_t{0} : state.alloc_pools[i];
      i += step(events, i, pool);
    }
    phases_.finish(static_cast<std::uint32_t>(events.size()));
    w_.uses_private_pools = !state.alloc_pools.empty();
  }

 private:
  /// Ports of the allocator pad requests, which is visible in block sizes of the final state.
  void detect_padding(const Rewound&) {
    std::uint64_t plain = 0;
    std::uint64_t padded = 0;
    for (const trace::Segment& segment : w_.device->segments) {
      if (!segment.small_pool) continue;
      for (const trace::Block& block : w_.device->blocks_of(segment)) {
        if (block.state == trace::BlockState::kFree || block.requested == 0) continue;
        const Bytes requested(block.requested);
        plain += w_.settings.round(requested).count() == block.size ? 1u : 0u;
        padded += w_.settings.round(requested + 32_B).count() == block.size ? 1u : 0u;
      }
    }
    if (padded > plain) {
      w_.version = cache::PolicyVersion::for_version("ascend");
      w_.notes.emplace_back(
          "Block sizes show requests padded by 32 bytes: the policy of torch_npu.");
    }
  }

  void find_reservations() {
    using Key = std::tuple<cache::Stream, std::uint32_t, bool>;
    std::map<Key, cache::CachingAllocator::Reservation> found;
    for (const auto& segment : w_.initial_segments) {
      if (!segment.expandable) continue;
      auto& reservation = found[{segment.stream, segment.pool, segment.small_pool}];
      if (reservation.address == 0) reservation.address = segment.address;
    }
    for (auto& [key, reservation] : found) {
      const bool small = std::get<2>(key);
      const std::uint64_t page =
          small ? cache::kSmallSegment.count() : w_.settings.large_segment_size.count();
      for (const Event& event : w_.device->events) {
        if (event.kind != EventKind::kSegmentMap || event.stream != std::get<0>(key)) continue;
        if (event.address >= reservation.address ||
            reservation.address - event.address > (1ull << 37) ||
            (reservation.address - event.address) % page != 0 ||
            (event.size % w_.settings.large_segment_size.count() == 0) == small)
          continue;
        reservation.address = event.address;
      }
      const Bytes room = options_.capacity.is_zero() ? 1_TiB : options_.capacity;
      reservation.size = round_up(room + room / 8, Bytes(page));
    }
    for (auto& [key, reservation] : found) {
      for (const auto& [other_key, other] : found)
        if (other.address > reservation.address)
          reservation.size = std::min(reservation.size, Bytes(other.address - reservation.address));
      w_.initial_reservations.push_back(reservation);
    }
  }

  std::uint32_t add_block(std::uint64_t requested, std::uint16_t block_route,
                          std::uint32_t birth_event, std::uint32_t phase) {
    w_.blocks.push_back({requested, birth_event, phase, kNoPhase, false, block_route});
    return static_cast<std::uint32_t>(w_.blocks.size());  // block number + 1
  }

  void number_initial_blocks() {
    using State = cache::CachingAllocator::BlockView::State;
    for (const auto& segment : w_.initial_segments) {
      for (const auto& block : segment.blocks) {
        if (block.state == State::kFree) continue;
        const std::uint32_t slot = add_block(
            block.requested.count(), w_.route({segment.stream, segment.pool}), kNoEvent, kNoPhase);
        w_.initial_addresses.push_back(block.address);
        w_.initial_pending.push_back(block.state == State::kPendingFree);
        live_.insert(block.address, slot);
        pending_.push_back(block.state == State::kPendingFree);
      }
    }
    w_.initial_blocks = static_cast<std::uint32_t>(w_.blocks.size());
  }

  void die(std::uint32_t slot) {
    w_.blocks[slot - 1].dies = true;
    w_.blocks[slot - 1].death_phase = phases_.current();
  }

  void push(OpKind kind, std::uint32_t block, std::uint64_t size, std::uint32_t index) {
    w_.ops.push_back({size, block, index, 0, kind});
  }

  /// Ends a block. Its free was requested earlier, or request and completion coincide.
  void complete(std::uint32_t slot, std::uint32_t index) {
    push(pending_[slot - 1] ? OpKind::kCompleteFree : OpKind::kFree, slot - 1, 0, index);
    die(slot);
  }

  void alloc(const Event& event, std::uint32_t index, std::uint8_t pool) {
    if (const std::uint32_t old = live_.take(event.address); old != 0) {
      ++w_.anomalies.allocs_over_live;
      complete(old, index);
    }
    const std::uint16_t way = w_.route({event.stream, pool});
    const std::uint32_t slot = add_block(event.size, way, index, phases_.current());
    pending_.push_back(false);
    live_.insert(event.address, slot);
    w_.ops.push_back({event.size, slot - 1, index, way, OpKind::kAlloc});
  }

  /// If the next event is the completion, handles it as well and returns 1.
  std::size_t request_free(const std::vector<Event>& events, std::size_t i) {
    const cache::Address at = events[i].address;
    const auto index = static_cast<std::uint32_t>(i);
    const std::uint32_t slot = live_.find(at);
    if (slot == 0 || pending_[slot - 1]) {
      ++w_.anomalies.frees_of_unknown;
      return 0;
    }
    if (i + 1 < events.size() && events[i + 1].kind == EventKind::kFreeCompleted &&
        events[i + 1].address == at) {
      ++w_.allocator_events;
      live_.take(at);
      complete(slot, index);
      return 1;
    }
    push(OpKind::kRequestFree, slot - 1, 0, index);
    pending_[slot - 1] = true;
    die(slot);
    return 0;
  }

  /// Appends the operations of an event. Returns the number of further events handled.
  std::size_t step(const std::vector<Event>& events, std::size_t i, std::uint8_t pool) {
    const Event& event = events[i];
    const auto index = static_cast<std::uint32_t>(i);
    if (event.kind >= EventKind::kAlloc && event.kind <= EventKind::kOom) ++w_.allocator_events;
    if (event.kind != EventKind::kSegmentFree && event.kind != EventKind::kSegmentUnmap &&
        event.kind != EventKind::kPhaseEnd && event.kind != EventKind::kPhaseBegin)
      in_burst_ = false;
    switch (event.kind) {
      case EventKind::kAlloc:
        alloc(event, index, pool);
        return 0;
      case EventKind::kFreeRequested:
        return request_free(events, i);
      case EventKind::kFreeCompleted:
        if (const std::uint32_t slot = live_.take(event.address); slot != 0) {
          complete(slot, index);
        } else {
          ++w_.anomalies.frees_of_unknown;
        }
        return 0;
      case EventKind::kSegmentAlloc:
      case EventKind::kSegmentMap:
        ++w_.segment_events;
        push(event.kind == EventKind::kSegmentAlloc ? OpKind::kSegmentAlloc : OpKind::kSegmentMap,
             0, event.size, index);
        return 0;
      case EventKind::kSegmentFree:
      case EventKind::kSegmentUnmap:
        ++w_.segment_events;
        if (!in_burst_ && looks_explicit(events, i)) push(OpKind::kRecordedEmptyCache, 0, 0, index);
        in_burst_ = true;
        push(event.kind == EventKind::kSegmentFree ? OpKind::kSegmentFree : OpKind::kSegmentUnmap,
             0, event.size, index);
        return 0;
      case EventKind::kOom:
        push(OpKind::kOom, 0, event.size, index);
        return 0;
      default:
        return 0;
    }
  }

  /// A burst of releases comes from empty_cache, unless the allocator was out of memory. In that
  /// case the segment that it needed follows at once.
  [[nodiscard]] bool looks_explicit(const std::vector<Event>& events, std::size_t i) const {
    if (phases_.just_ended(static_cast<std::uint32_t>(i))) return true;
    std::size_t after = i;
    while (after < events.size() && (events[after].kind == EventKind::kSegmentFree ||
                                     events[after].kind == EventKind::kSegmentUnmap))
      ++after;
    if (after == events.size()) return true;
    const EventKind kind = events[after].kind;
    if (kind == EventKind::kOom) return false;
    if (kind != EventKind::kSegmentAlloc && kind != EventKind::kSegmentMap) return true;
    if (w_.settings.garbage_collection_threshold > 0) return false;
    // A retry continues within microseconds; a program that empties its cache does not.
    return !w_.device->has_times || events[after].time_ns - events[after - 1].time_ns > 2'000'000;
  }

  Workload& w_;
  const PrepareOptions& options_;
  PhaseTracker phases_;
  cache::AddressMap<std::uint32_t> live_;  ///< address -> block number + 1
  std::vector<bool> pending_;
  bool in_burst_ = false;
};

}  // namespace

std::uint16_t Workload::route(const Route& wanted) {
  auto at = std::find(routes.begin(), routes.end(), wanted);
  if (at == routes.end()) {
    // If there are more routes than numbers, the remaining ones share the last number.
    if (routes.size() == 0xffff) return 0xfffe;
    at = routes.insert(at, wanted);
  }
  return static_cast<std::uint16_t>(at - routes.begin());
}

Result<PhaseAt> PhaseAt::parse(std::string_view text) {
  const auto wrong = [&] {
    return Status(
        ErrorCode::kInvalidArgument,
        format("--phase-at \"{}\" is neither NAME=TIME (1.5s, 200ms) nor NAME=@FUNCTION", text));
  };
  const auto equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) return wrong();
  PhaseAt at;
  at.name = text.substr(0, equals);
  std::string_view value = text.substr(equals + 1);
  if (value.front() == '@') {
    at.function = value.substr(1);
    if (at.function.empty()) return wrong();
    return at;
  }
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(value.data() + value.size() - end));
  const double scale = unit == "s" ? 1e9 : unit == "ms" ? 1e6 : unit == "us" ? 1e3 : 0;
  if (error != std::errc() || scale == 0 || !(number >= 0) || number * scale > 9e18) return wrong();
  at.time_ns = static_cast<std::uint64_t>(number * scale);
  return at;
}

Result<Workload> prepare(const trace::Recording& recording, const trace::DeviceRecording& device,
                         const PrepareOptions& options) {
  if (device.events.size() >= kNoEvent)
    return Status(ErrorCode::kUnsupported,
                  format("Device {} has {} events, at most {} can be replayed", device.ordinal,
                         device.events.size(), kNoEvent - 1));
  Workload workload;
  workload.recording = &recording;
  workload.device = &device;
  workload.settings = recorded_settings(recording, &workload.notes);
  workload.version = recorded_version(recording, &workload.notes);
  Preparer(workload, options).run();
  if (workload.uses_private_pools) NEAP_TRY(infer_pools(workload, options.capacity));
  return workload;
}

}  // namespace neap::replay
