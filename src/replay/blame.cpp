#include "replay/blame.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/format.h"
#include "replay/stack_text.h"

namespace neap::replay {
namespace {

using View = cache::CachingAllocator::BlockView;

/// Text of a size class: powers of eight, and PyTorch's limits at 1, 10 and 20 MiB.
std::string size_class(Bytes size) {
  constexpr std::pair<Bytes, const char*> kClasses[] = {
      {4_KiB, "at most 4 KiB"},    {64_KiB, "4 KiB to 64 KiB"},  {1_MiB, "64 KiB to 1 MiB"},
      {10_MiB, "1 MiB to 10 MiB"}, {20_MiB, "10 MiB to 20 MiB"}, {128_MiB, "20 MiB to 128 MiB"},
      {1_GiB, "128 MiB to 1 GiB"}};
  for (const auto& [limit, name] : kClasses)
    if (size <= limit) return name;
  return "above 1 GiB";
}

class Walk {
 public:
  Walk(const Workload& workload, const RecordedRun& run, Blame& out)
      : w_(workload), run_(run), out_(out) {}

  void segment(const cache::CachingAllocator::SegmentView& segment, std::size_t most_gaps) {
    const auto& blocks = segment.blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].state == View::State::kFree)
        add_gap(segment, i, most_gaps);
      else
        count_live(blocks[i]);
    }
    if (!segment.expandable) {
      unit(blocks, segment.address, segment.address + segment.size.count());
      return;
    }
    const std::uint64_t page =
        segment.small_pool ? cache::kSmallSegment.count() : w_.settings.large_segment_size.count();
    const cache::Address end = segment.address + segment.size.count();
    std::size_t first = 0;
    for (cache::Address at = segment.address; at < end; at += page) {
      const cache::Address page_end = std::min(at + page, end);
      while (first < blocks.size() && blocks[first].address + blocks[first].size.count() <= at)
        ++first;
      std::size_t last = first;
      while (last < blocks.size() && blocks[last].address < page_end) ++last;
      unit(std::span(blocks).subspan(first, last - first), at, page_end);
    }
  }

  void finish() {
    out_.by_phase = sorted(by_phase_);
    out_.by_size = sorted(by_size_);
    out_.by_stack = sorted(by_stack_);
    std::sort(out_.gaps.begin(), out_.gaps.end(),
              [](const Gap& a, const Gap& b) { return a.size > b.size; });
  }

 private:
  struct Names {
    std::string phase, size, stack;
  };
  using Groups = std::map<std::string, PinGroup>;

  [[nodiscard]] const std::string& stack_of(const BlockLife& life) {
    static const std::string kNone;
    if (life.birth_event == kNoEvent) return kNone;
    const std::uint32_t stack = w_.device->events[life.birth_event].name;
    const auto [at, fresh] = stacks_.try_emplace(stack);
    if (fresh) at->second = stack_text(*w_.recording, stack);
    return at->second;
  }

  [[nodiscard]] Names names_of(const View& block) {
    const auto number = run_.block_at(block.address);
    if (!number) return {"(unknown)", size_class(block.size), {}};
    const BlockLife& life = w_.blocks[*number];
    return {life.birth_event == kNoEvent ? "(before the trace)" : w_.phase_name(life.birth_phase),
            size_class(block.size), stack_of(life)};
  }

  [[nodiscard]] std::string describe(const View& block) {
    const Names names = names_of(block);
    return format("{} allocated in {}{}{}", block.size, without_prefix_of(names.phase),
                  names.stack.empty() ? "" : " at ", names.stack);
  }
  static std::string_view without_prefix_of(std::string_view phase) {
    return phase.substr(0, 6) == "phase:" ? phase.substr(6) : phase;
  }

  static PinGroup& group(Groups& groups, const std::string& name) {
    PinGroup& found = groups[name];
    if (found.name.empty()) found.name = name;
    return found;
  }

  void count_live(const View& block) {
    const Names names = names_of(block);
    const auto count = [&](Groups& groups, const std::string& name) {
      PinGroup& found = group(groups, name);
      ++found.blocks;
      found.live += block.size;
    };
    count(by_phase_, names.phase);
    count(by_size_, names.size);
    if (!names.stack.empty()) count(by_stack_, names.stack);
  }

  void unit(std::span<const View> blocks, cache::Address begin, cache::Address end) {
    std::uint64_t free = 0;
    std::vector<Names> live;
    for (const View& block : blocks) {
      if (block.state == View::State::kFree)
        free += std::min(end, block.address + block.size.count()) - std::max(begin, block.address);
      else
        live.push_back(names_of(block));
    }
    if (free == 0) return;
    if (live.empty()) {
      out_.releasable += Bytes(free);
      return;
    }
    out_.pinned += Bytes(free);
    charge(by_phase_, live, &Names::phase, free);
    charge(by_size_, live, &Names::size, free);
    charge(by_stack_, live, &Names::stack, free);
  }

  static void charge(Groups& groups, const std::vector<Names>& live, std::string Names::*key,
                     std::uint64_t free) {
    std::map<std::string_view, std::uint64_t> counts;
    for (const Names& names : live)
      if (!(names.*key).empty()) ++counts[names.*key];
    for (const auto& [name, count] : counts) {
      PinGroup& found = group(groups, std::string(name));
      found.share += Bytes(free * count / live.size());
      if (count == live.size()) found.alone += Bytes(free);
    }
  }

  void add_gap(const cache::CachingAllocator::SegmentView& segment, std::size_t i,
               std::size_t most) {
    const auto& blocks = segment.blocks;
    if (blocks.size() == 1) return;  // a free segment is not a gap
    auto& gaps = out_.gaps;
    const auto smaller = [](const Gap& a, const Gap& b) { return a.size > b.size; };
    if (gaps.size() == most && (most == 0 || blocks[i].size <= gaps.front().size)) return;
    Gap gap{blocks[i].address, blocks[i].size, segment.size, {}, {}};
    if (i > 0) gap.before = describe(blocks[i - 1]);
    if (i + 1 < blocks.size()) gap.after = describe(blocks[i + 1]);
    if (gaps.size() == most) {
      std::pop_heap(gaps.begin(), gaps.end(), smaller);
      gaps.pop_back();
    }
    gaps.push_back(std::move(gap));
    std::push_heap(gaps.begin(), gaps.end(), smaller);
  }

  static std::vector<PinGroup> sorted(const Groups& groups) {
    std::vector<PinGroup> all;
    for (const auto& [name, found] : groups) all.push_back(found);
    std::stable_sort(all.begin(), all.end(), [](const PinGroup& a, const PinGroup& b) {
      return a.share != b.share ? a.share > b.share : a.live > b.live;
    });
    return all;
  }

  const Workload& w_;
  const RecordedRun& run_;
  Blame& out_;
  Groups by_phase_;
  Groups by_size_;
  Groups by_stack_;
  std::unordered_map<std::uint32_t, std::string> stacks_;
};

}  // namespace

Result<std::uint32_t> peak_event(const Workload& workload, Bytes capacity) {
  RecordedRun run(workload, {.capacity = capacity});
  Bytes best;
  std::uint32_t at = 0;
  bool grew = true;  // the state before the first event also counts
  NEAP_TRY(run.run([&](const Op& op, const cache::CachingAllocator& allocator) {
    if (op.kind == OpKind::kSegmentAlloc || op.kind == OpKind::kSegmentMap) grew = true;
    if (op.kind != OpKind::kAlloc || !grew) return;
    grew = false;
    const Bytes reserved = allocator.stats().reserved;
    if (reserved <= best) return;
    best = reserved;
    at = op.event;
  }));
  return at;
}

std::uint32_t event_at(const Workload& workload, std::uint64_t time_ns) {
  const auto& events = workload.device->events;
  const auto after = std::upper_bound(
      events.begin(), events.end(), time_ns,
      [](std::uint64_t time, const trace::Event& event) { return time < event.time_ns; });
  return after == events.begin() ? 0 : static_cast<std::uint32_t>(after - events.begin()) - 1;
}

Result<Blame> blame(const Workload& workload, std::uint32_t event, Bytes capacity,
                    std::size_t most_gaps) {
  RecordedRun run(workload, {.capacity = capacity, .stop_before_event = event + 1});
  NEAP_TRY(run.run());
  Blame out;
  out.event = event;
  if (event < workload.device->events.size()) out.time_ns = workload.device->events[event].time_ns;
  // The shortest phase that contains the event is the innermost one.
  std::uint32_t phase = kNoPhase;
  for (std::uint32_t i = 0; i < workload.phases.size(); ++i) {
    const PhaseRun& candidate = workload.phases[i];
    if (event < candidate.first_event || event >= candidate.last_event) continue;
    if (phase == kNoPhase ||
        candidate.last_event - candidate.first_event <
            workload.phases[phase].last_event - workload.phases[phase].first_event)
      phase = i;
  }
  out.phase = workload.phase_name(phase);
  const cache::CacheStats stats = run.allocator().stats();
  out.reserved = stats.reserved;
  out.allocated = stats.allocated;
  out.active = stats.active;
  Walk walk(workload, run, out);
  for (const auto& segment : run.allocator().snapshot()) walk.segment(segment, most_gaps);
  walk.finish();
  return out;
}

}  // namespace neap::replay
