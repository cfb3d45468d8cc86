#include "report/history.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "report/residency_chart.h"
#include "trace/phase_marks.h"

namespace neap::report {
namespace {

using trace::Event;
using trace::EventKind;

constexpr std::string_view kOtherPhases = "other phases";

/// Maps names to layers. Tags and phases are separate.
class LayerIndex {
 public:
  LayerIndex(const trace::Recording& recording, const trace::DeviceRecording& device,
             const trace::PhaseMarks& marks, std::size_t max_birth_layers) {
    struct Use {
      std::uint64_t bytes = 0;
      std::size_t order = 0;
    };
    std::unordered_map<std::uint32_t, Use> births;
    std::vector<std::uint32_t> open{0};
    for (const Event& event : device.events) {
      switch (event.kind) {
        case EventKind::kPhaseBegin:
          if (marks.begins_phase(event)) open.push_back(event.name);
          break;
        case EventKind::kPhaseEnd:
          if (const auto it = std::find(open.rbegin(), open.rend() - 1, event.name);
              it != open.rend() - 1)
            open.erase(std::next(it).base());
          break;
        case EventKind::kAlloc:
          births.try_emplace(open.back(), Use{0, births.size()}).first->second.bytes += event.size;
          break;
        case EventKind::kRegionCreate:
        case EventKind::kResume:
          if (tags_.try_emplace(event.name, static_cast<std::uint16_t>(layers_.size())).second)
            layers_.push_back(
                {Layer::Kind::kTag, std::string(recording.names.name(event.name)), 0});
          break;
        default:
          break;
      }
    }
    births.try_emplace(0, Use{0, births.size()});  // blocks older than the trace
    std::vector<std::pair<std::uint32_t, Use>> ranked(births.begin(), births.end());
    std::sort(ranked.begin(), ranked.end(),
              [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
    if (ranked.size() > max_birth_layers) {
      ranked.resize(max_birth_layers);
      has_other_ = true;
    }
    // In order of first use, which is the order within a step.
    std::sort(ranked.begin(), ranked.end(),
              [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    for (const auto& [name, use] : ranked) {
      births_[name] = static_cast<std::uint16_t>(layers_.size());
      layers_.push_back({Layer::Kind::kBirthPhase,
                         std::string(trace::phase_label(recording.names.name(name))), 0});
    }
    if (has_other_) {
      other_ = static_cast<std::uint16_t>(layers_.size());
      layers_.push_back({Layer::Kind::kBirthPhase, std::string(kOtherPhases), 0});
    }
  }

  [[nodiscard]] std::uint16_t tag(std::uint32_t name) const { return tags_.find(name)->second; }
  [[nodiscard]] bool knows_tag(std::uint32_t name) const { return tags_.count(name) != 0; }
  [[nodiscard]] std::uint16_t birth(std::uint32_t phase) const {
    const auto it = births_.find(phase);
    if (it != births_.end()) return it->second;
    return has_other_ ? other_ : births_.begin()->second;
  }
  std::vector<Layer> take() { return std::move(layers_); }
  [[nodiscard]] std::size_t size() const { return layers_.size(); }

 private:
  std::vector<Layer> layers_;
  std::unordered_map<std::uint32_t, std::uint16_t> tags_, births_;
  std::uint16_t other_ = 0;
  bool has_other_ = false;
};

bool has_kind(const trace::DeviceRecording& device, EventKind kind) {
  return std::any_of(device.events.begin(), device.events.end(),
                     [kind](const Event& event) { return event.kind == kind; });
}

class Builder {
 public:
  Builder(const trace::Recording& recording, const trace::DeviceRecording& device,
          const HistoryOptions& options)
      : recording_(recording),
        device_(device),
        marks_(recording, device),
        index_(recording, device, marks_, options.max_birth_layers),
        space_(settings_of(recording)),
        capture_(options.capture_events),
        residency_(has_kind(device, EventKind::kMap),
                   [this](std::uint32_t tag, std::uint64_t bytes, bool more) {
                     tag_changed(tag, bytes, more);
                   }),
        stack_(index_.size()),
        layer_peaks_(index_.size()) {
    Leaves& leaves = history_.leaves;
    leaves.layer_count = index_.size();
    // An idle period ends its leaf early, so that a peak is not drawn wider than it was.
    const std::size_t most = std::max<std::size_t>(options.max_leaves, 64);
    const std::size_t by_count = most - most / 8;
    events_per_leaf_ = std::max<std::size_t>(1, (device.events.size() + by_count - 1) / by_count);
    const std::uint64_t first = device.events.empty() ? 0 : device.events.front().time_ns;
    const std::uint64_t last = device.events.empty() ? 0 : device.events.back().time_ns;
    longest_gap_ns_ = std::max<std::uint64_t>(1, (last - std::min(first, last)) / (most / 8));
    start(first);
  }

  History take() {
    for (std::size_t i = 0; i < device_.events.size(); ++i) {
      event_ = i;
      now_ = std::max(now_, device_.events[i].time_ns);
      if (step(device_.events[i])) sample();
      while (captured_ < capture_.size() && capture_[captured_] <= i) {
        SegmentMap map = SegmentMap::capture(space_);
        map.time_ns = now_;
        map.event = i;
        history_.maps.push_back(std::move(map));
        ++captured_;
      }
    }
    history_.end_ns = now_;
    history_.events = device_.events.size();
    while (!open_.empty()) close_phase(open_.size() - 1);
    std::stable_sort(
        history_.phases.begin(), history_.phases.end(),
        [](const PhaseSpan& a, const PhaseSpan& b) { return a.begin_ns < b.begin_ns; });
    history_.layers = index_.take();
    for (std::size_t i = 0; i < layer_peaks_.size(); ++i) history_.layers[i].peak = layer_peaks_[i];
    return std::move(history_);
  }

 private:
  /// Sets the state before the first event: empty, or rewound from the snapshot's segments.
  void start(std::uint64_t first_ns) {
    now_ = first_ns;
    if (!device_.segments.empty()) {
      AddressSpace whole(settings_of(recording_));
      std::uint64_t net = 0, final_bytes = 0;
      for (const trace::Segment& segment : device_.segments) final_bytes += segment.size;
      for (const Event& event : device_.events) {
        if (event.kind == EventKind::kSegmentAlloc || event.kind == EventKind::kSegmentMap)
          net += event.size;
        if (event.kind == EventKind::kSegmentFree || event.kind == EventKind::kSegmentUnmap)
          net -= event.size;
      }
      if (net != final_bytes) {
        history_.started_in_the_middle = true;
        space_.load(device_);
        rewind(space_, device_);
        for (auto& [address, block] : space_.blocks()) {
          block.layer = index_.birth(0);
          if (block.pending_free) continue;
          born(block);
        }
      }
    }
    history_.physical = has_kind(device_, EventKind::kCreate);
    sample();
  }

  [[nodiscard]] std::uint64_t reserved() const {
    return history_.physical ? physical_ : space_.reserved() + tags_total_;
  }

  void grow(std::uint16_t layer, std::uint64_t bytes) {
    stack_[layer] += bytes;
    total_ += bytes;
  }
  void shrink(std::uint16_t layer, std::uint64_t bytes) {
    const std::uint64_t cut = std::min(bytes, stack_[layer]);
    stack_[layer] -= cut;
    total_ -= cut;
  }

  void tag_changed(std::uint32_t name, std::uint64_t bytes, bool more) {
    if (!index_.knows_tag(name)) return;
    const std::uint64_t before = total_;
    if (more) {
      grow(index_.tag(name), bytes);
      tags_total_ += bytes;
    } else {
      shrink(index_.tag(name), bytes);
      tags_total_ -= before - total_;
    }
  }

  void born(const LiveBlock& block) {
    grow(block.layer, block.size);
    requested_ += block.requested;
  }
  void died(const LiveBlock& block) {
    shrink(block.layer, block.size);
    requested_ -= block.requested;
  }

  void driver_allocation(const Event& event) {
    const std::uint64_t before = space_.reserved();
    const std::uint64_t fragmentation = before - std::min(before, requested_);
    space_.add_segment(
        event.address,
        {event.size, event.stream, event.pool, event.kind == EventKind::kSegmentMap,
         event.kind == EventKind::kSegmentAlloc && Bytes(event.size) <= cache::kSmallSegment});
    const std::uint64_t after = reserved();
    history_.driver_allocations.push_back({now_, event_, event.size, after, fragmentation});
    ++history_.driver_allocs;
    history_.fragmentation_max = std::max(history_.fragmentation_max, fragmentation);
    if (space_.reserved() > peak_pool_reserved_) {
      peak_pool_reserved_ = space_.reserved();
      history_.fragmentation_at_peak = fragmentation;
    }
    if (after - std::min(after, fragmentation) > history_.peak_without_fragmentation) {
      history_.peak_without_fragmentation = after - std::min(after, fragmentation);
      history_.peak_without_fragmentation_ns = now_;
    }
    for (PhaseSpan& span : open_) {
      ++span.driver_allocs;
      span.fragmentation = std::max(span.fragmentation, fragmentation);
    }
  }

  void release(std::uint64_t address, bool completed) {
    LiveBlock* block = space_.find_block(address);
    if (block == nullptr) {
      if (completed) ++history_.unmatched_frees;
      return;
    }
    if (!block->pending_free) died(*block);
    block->pending_free = true;
    if (completed) space_.remove_block(address);
  }

  /// Applies an event. True if it changed what is drawn.
  bool step(const Event& event) {
    switch (event.kind) {
      case EventKind::kAlloc: {
        // An older block at this address was freed outside of the trace.
        if (const LiveBlock old = space_.remove_block(event.address);
            old.size != 0 && !old.pending_free)
          died(old);
        LiveBlock& block = space_.add_block(event.address, event.size);
        block.event = event_;
        block.layer = index_.birth(open_names_.empty() ? 0 : open_names_.back());
        born(block);
        return true;
      }
      case EventKind::kFreeRequested:
        release(event.address, false);
        return true;
      case EventKind::kFreeCompleted:
        release(event.address, true);
        return true;
      case EventKind::kSegmentAlloc:
      case EventKind::kSegmentMap:
        driver_allocation(event);
        return true;
      case EventKind::kSegmentFree:
      case EventKind::kSegmentUnmap:
        space_.remove_segment(event.address, event.size);
        ++history_.driver_frees;
        for (PhaseSpan& span : open_) ++span.driver_frees;
        return true;
      case EventKind::kOom:
        ++history_.ooms;
        return false;
      case EventKind::kPhaseBegin:
        if (!marks_.begins_phase(event)) return false;
        open_.push_back({std::string(trace::phase_label(recording_.names.name(event.name))), now_,
                         now_, static_cast<std::uint32_t>(open_.size()), reserved(), total_});
        open_names_.push_back(event.name);
        return false;
      case EventKind::kPhaseEnd:
        for (std::size_t i = open_.size(); i-- > 0;) {
          if (open_names_[i] != event.name) continue;
          close_phase(i);
          break;
        }
        return false;
      case EventKind::kCreate:
        pages_[event.address] = event.size;
        physical_ += event.size;
        return true;
      case EventKind::kRelease:
        if (const auto page = pages_.find(event.address); page != pages_.end()) {
          physical_ -= page->second;
          pages_.erase(page);
        }
        return true;
      case EventKind::kCopyToHost:
      case EventKind::kCopyToDevice:
        history_.copied += event.size;
        for (PhaseSpan& span : open_) span.copied += event.size;
        return false;
      default:
        return residency_.apply(event);
    }
  }

  void close_phase(std::size_t i) {
    open_[i].end_ns = now_;
    history_.phases.push_back(std::move(open_[i]));
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    open_names_.erase(open_names_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void sample() {
    Leaves& leaves = history_.leaves;
    const std::uint64_t held = reserved();
    if (leaves.size() == 0 || in_leaf_ >= events_per_leaf_ || now_ - last_ns_ > longest_gap_ns_) {
      in_leaf_ = 0;
      leaves.begin_ns.push_back(now_);
      leaves.first_event.push_back(event_);
      leaves.peak_ns.push_back(now_);
      leaves.stack.insert(leaves.stack.end(), stack_.begin(), stack_.end());
      leaves.total_high.push_back(total_);
      leaves.total_low.push_back(total_);
      leaves.reserved_high.push_back(held);
      leaves.reserved_low.push_back(held);
    } else {
      if (total_ > leaves.total_high.back()) {
        leaves.total_high.back() = total_;
        leaves.peak_ns.back() = now_;
        std::copy(stack_.begin(), stack_.end(),
                  leaves.stack.end() - static_cast<std::ptrdiff_t>(stack_.size()));
      }
      leaves.total_low.back() = std::min(leaves.total_low.back(), total_);
      leaves.reserved_high.back() = std::max(leaves.reserved_high.back(), held);
      leaves.reserved_low.back() = std::min(leaves.reserved_low.back(), held);
    }
    ++in_leaf_;
    last_ns_ = now_;
    for (std::size_t i = 0; i < stack_.size(); ++i)
      layer_peaks_[i] = std::max(layer_peaks_[i], stack_[i]);
    if (total_ > history_.peak_total) {
      history_.peak_total = total_;
      history_.peak_total_ns = now_;
      history_.peak_total_event = event_;
    }
    if (held > history_.peak_reserved) {
      history_.peak_reserved = held;
      history_.peak_reserved_ns = now_;
      history_.peak_reserved_event = event_;
    }
    for (PhaseSpan& span : open_) {
      span.peak_reserved = std::max(span.peak_reserved, held);
      span.peak_total = std::max(span.peak_total, total_);
    }
  }

  const trace::Recording& recording_;
  const trace::DeviceRecording& device_;
  trace::PhaseMarks marks_;
  LayerIndex index_;
  AddressSpace space_;
  History history_;
  std::vector<std::uint64_t> capture_;
  std::size_t captured_ = 0;
  Residency residency_;
  std::vector<std::uint64_t> stack_, layer_peaks_;
  std::vector<PhaseSpan> open_;  ///< with open_names_: the current phases, outermost first
  std::vector<std::uint32_t> open_names_;
  std::unordered_map<std::uint64_t, std::uint64_t> pages_;
  std::uint64_t total_ = 0, tags_total_ = 0, requested_ = 0, physical_ = 0, peak_pool_reserved_ = 0;
  std::uint64_t now_ = 0, last_ns_ = 0, event_ = 0, longest_gap_ns_ = 1;
  std::size_t events_per_leaf_ = 1, in_leaf_ = 0;
};

}  // namespace

History build_history(const trace::Recording& recording, const trace::DeviceRecording& device,
                      const HistoryOptions& options) {
  return Builder(recording, device, options).take();
}

}  // namespace neap::report
