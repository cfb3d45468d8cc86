// Plans of a few granules, and what their tags hold, for tests of the executor.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "bridge/schedule_executor.h"
#include "device/host/host_device.h"
#include "unit/plan/plan_ids.h"

namespace neap::bridge {

using plan::Contents;
using plan::MemoryPlan;
using plan::Need;
using plan::TagPlan;
using spec::PhaseId;

constexpr Bytes kGranule = 64_KiB;

inline TagPlan make_tag(spec::TagId id, std::vector<std::uint64_t> regions, Contents contents) {
  TagPlan tag;
  tag.id = id;
  tag.contents = contents;
  for (std::size_t r = 0; r < regions.size(); ++r) {
    const Bytes bytes = kGranule * regions[r];
    tag.regions.push_back({format("r{}", r), bytes, {{format("r{}", r), Bytes(), bytes}}});
    tag.bytes += bytes;
  }
  return tag;
}

/// What each region of each tag holds, beside the arena.
class Shadow {
 public:
  explicit Shadow(const MemoryPlan& plan) : plan_(plan) {
    for (const TagPlan& tag : plan.tags) values_.emplace_back(tag.regions.size(), 0);
  }
  void write(ScheduleExecutor& executor, std::size_t tag, std::size_t region) {
    values_[tag][region] = ++last_;
    const auto [words, count] = words_of(executor, tag, region);
    std::fill(words, words + count, last_);
  }
  [[nodiscard]] bool holds(ScheduleExecutor& executor, std::size_t tag, std::size_t region) const {
    const auto [words, count] = words_of(executor, tag, region);
    return std::all_of(words, words + count,
                       [&](std::uint64_t w) { return w == values_[tag][region]; });
  }

 private:
  [[nodiscard]] std::pair<std::uint64_t*, std::size_t> words_of(ScheduleExecutor& executor,
                                                                std::size_t tag,
                                                                std::size_t region) const {
    const auto place = executor.place(plan_.tags[tag].id, plan_.tags[tag].regions[region].name);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
    return {reinterpret_cast<std::uint64_t*>(place.address), place.bytes.count() / 8};
  }
  const MemoryPlan& plan_;
  std::vector<std::vector<std::uint64_t>> values_;
  std::uint64_t last_ = 0;
};

inline std::unique_ptr<device::HostDevice> host_device(Bytes capacity) {
  device::HostOptions options;
  options.capacity = capacity;
  options.granularity = kGranule;
  return value_or_throw(device::make_host_device(options));
}

/// Works in a phase: what it needs is there and unchanged, what it writes is written.
inline void work(ScheduleExecutor& executor, const MemoryPlan& plan, Shadow& shadow,
                 std::size_t phase) {
  for (std::size_t t = 0; t < plan.tags.size(); ++t) {
    const TagPlan& tag = plan.tags[t];
    if (tag.need[phase] == Need::kOptional) continue;
    for (std::size_t r = 0; r < tag.regions.size(); ++r) {
      // What scratch held is undefined where it has been away.
      if (tag.contents != Contents::kScratch) {
        ASSERT_TRUE(shadow.holds(executor, t, r)) << tag.name() << " in phase " << phase;
      }
      if (tag.write[phase]) shadow.write(executor, t, r);
    }
  }
}

}  // namespace neap::bridge
