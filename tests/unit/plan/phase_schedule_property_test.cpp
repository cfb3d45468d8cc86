// Schedules of random plans, against enumeration and by walking them.
#include "plan/residency/phase_schedule.h"

#include <gtest/gtest.h>

#include <ctime>
#include <optional>
#include <random>

#include "plan/residency/least_capacity.h"
#include "schedule_walk.h"
#include "unit/plan/small_plans.h"

namespace neap::plan {
namespace {

// Cost of one tag's residency, by walking the cycle until it repeats itself.
struct Lived {
  std::uint64_t transfer_bytes = 0, host = 0;
};
Lived live(const MemoryPlan& plan, const TagPlan& t, const std::vector<bool>& there) {
  bool was = there.back();
  bool copy = t.contents == Contents::kFrozen;  // a frozen tag came from somewhere
  Lived lived;
  for (int round = 0; round < 3; ++round) {
    lived = {};
    for (const auto& [p, again] : visits_of(plan)) {
      if (t.contents != Contents::kScratch && was != there[p]) {
        lived.host = t.bytes.count();
        if (was && !copy) lived.transfer_bytes += t.bytes.count();
        if (!was) lived.transfer_bytes += t.bytes.count();
        if (was) copy = true;
      }
      if (t.write[p]) copy = false;
      was = there[p];
    }
  }
  return lived;
}

// Least link bytes over every residency of every tag in every phase.
std::optional<std::uint64_t> enumerate(const MemoryPlan& plan) {
  const std::size_t phases = plan.phases.size();
  struct Way {
    std::vector<bool> there;
    Lived lived;
  };
  std::vector<std::vector<Way>> ways;
  for (const TagPlan& t : plan.tags) {
    ways.emplace_back();
    for (std::uint64_t mask = 0; mask < (1ull << phases); ++mask) {
      std::vector<bool> there;
      bool allowed = true;
      for (std::size_t p = 0; p < phases; ++p) {
        there.push_back((mask >> p & 1) != 0);
        allowed =
            allowed && (t.need[p] == Need::kOptional || there.back() == (t.need[p] == Need::kNeed));
      }
      if (allowed) ways.back().push_back({there, live(plan, t, there)});
    }
  }
  std::optional<std::uint64_t> best;
  std::vector<std::uint64_t> used(phases, 0);
  const auto visit = [&](auto&& self, std::size_t k, std::uint64_t link,
                         std::uint64_t host) -> void {
    if (k == ways.size()) {
      for (std::size_t p = 0; p < phases; ++p)
        if (used[p] + plan.phases[p].transient.count() > plan.capacity.count()) return;
      if (!plan.host_budget.is_zero() && host > plan.host_budget.count()) return;
      if (!best || link < *best) best = link;
      return;
    }
    for (const Way& way : ways[k]) {
      for (std::size_t p = 0; p < phases; ++p)
        used[p] += way.there[p] ? plan.tags[k].bytes.count() : 0;
      self(self, k + 1, link + way.lived.transfer_bytes, host + way.lived.host);
      for (std::size_t p = 0; p < phases; ++p)
        used[p] -= way.there[p] ? plan.tags[k].bytes.count() : 0;
    }
  };
  visit(visit, 0, 0, 0);
  return best;
}

TEST(ResidencyProperty, IsOptimalAgainstEnumeration) {
  std::mt19937_64 random(20241121);
  int fitted = 0;
  for (int i = 0; i < 3000; ++i) {
    MemoryPlan plan = random_plan(random);
    const std::optional<std::uint64_t> best = enumerate(plan);
    const Status status = solve_residency(plan, spec::Residency::kAuto);
    ASSERT_EQ(status.ok(), best.has_value()) << i << ": " << status.message();
    if (!best) {
      ASSERT_EQ(status.code(), ErrorCode::kDoesNotFit);
      MemoryPlan roomier = plan;
      roomier.capacity = min_capacity(plan);
      ASSERT_GT(roomier.capacity, plan.capacity) << i;
      ASSERT_TRUE(solve_residency(roomier, spec::Residency::kAuto).ok()) << i;
      continue;
    }
    ++fitted;
    ASSERT_EQ(plan.moved_per_step.count(), *best) << i;
    const Walk w = walk(plan);
    ASSERT_TRUE(w.closes && w.fits && w.complete) << i;
    ASSERT_EQ(w.link, plan.moved_per_step) << i;
    ASSERT_LE(min_capacity(plan), plan.capacity) << i;
  }
  EXPECT_GT(fitted, 1000);
}

TEST(ResidencyProperty, APhaseThatRunsOnceChangesNoStep) {
  std::mt19937_64 random(11);
  int fitted = 0;
  for (int i = 0; i < 500; ++i) {
    MemoryPlan plain = random_plan(random);
    plain.overlap = i % 2 == 0;
    for (PhasePlan& phase : plain.phases)
      phase.seconds = 1e-9 * static_cast<double>(random() % 100);
    MemoryPlan more = plain;
    more.phases.push_back({some_phase(15), Bytes(1), Bytes(1), 5});
    more.phases.back().times = 0;
    for (TagPlan& t : more.tags) {
      t.need.push_back(Need::kOptional);
      t.write.push_back(false);
    }
    more.tags.push_back(tag(some_tag(15), plain.capacity - Bytes(1),
                            std::string(plain.phases.size(), 'd') + "N",
                            std::string(more.phases.size(), '.'), Contents::kScratch));
    const bool fits = solve_residency(plain, spec::Residency::kAuto).ok();
    ASSERT_EQ(solve_residency(more, spec::Residency::kAuto).ok(), fits) << i;
    if (!fits) continue;
    ++fitted;
    for (std::size_t p = 0; p < plain.phases.size(); ++p) {
      const PhaseSchedule &a = plain.schedule[p], &b = more.schedule[p];
      ASSERT_EQ(a.moves, b.moves) << i;
      ASSERT_EQ(a.again, b.again) << i;
      ASSERT_EQ(a.peak, b.peak) << i;
      ASSERT_FALSE(b.resident.back()) << i;
    }
    ASSERT_EQ(more.moved_per_step, plain.moved_per_step) << i;
    ASSERT_DOUBLE_EQ(more.seconds(), plain.seconds()) << i;
    ASSERT_EQ(more.host_bytes, plain.host_bytes) << i;
    ASSERT_EQ(more.schedule.back().peak, plain.capacity) << i;
  }
  EXPECT_GT(fitted, 100);
}

TEST(ResidencyProperty, MoreCapacityNeverMovesMore) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    MemoryPlan plan = random_plan(random);
    std::optional<Bytes> before;
    for (std::uint64_t c = 20; c <= 240; c += 20) {
      plan.capacity = Bytes(c);
      const bool fits = solve_residency(plan, spec::Residency::kAuto).ok();
      ASSERT_TRUE(fits || !before) << "fitted under less";
      if (!fits) continue;
      ASSERT_LE(plan.peak, plan.capacity);
      if (before) {
        ASSERT_LE(plan.moved_per_step, *before) << i << " at " << c;
      }
      before = plan.moved_per_step;
    }
  }
}

TEST(ResidencyProperty, SixteenTagsInTenPhasesAreSolvedAtOnce) {
  std::mt19937_64 random(3);
  MemoryPlan plan;
  for (int p = 0; p < 10; ++p)
    plan.phases.push_back({some_phase(static_cast<std::size_t>(p)), Bytes(1000), Bytes()});
  Bytes total;
  for (int t = 0; t < 16; ++t) {
    std::string needs(10, '.');
    std::string writes(10, '.');
    for (int k = 0; k < 3; ++k) needs[random() % 10] = 'N';
    for (std::size_t p = 0; p < 10; ++p)
      if (needs[p] == 'N' && random() % 2 == 0) writes[p] = 'w';
    plan.tags.push_back(tag(some_tag(static_cast<std::size_t>(t)), Bytes(1000 + random() % 100000),
                            needs, writes, Contents::kLive));
    total += plan.tags.back().bytes;
  }
  const Bytes least = min_capacity(plan);
  ASSERT_LT(least, total);
  std::optional<Bytes> moved;
  const std::clock_t start = std::clock();
  for (const std::uint64_t percent : {0U, 5U, 20U, 40U, 60U, 80U, 95U}) {
    plan.capacity = least + (total - least) * percent / 100;
    const Status status = solve_residency(plan, spec::Residency::kAuto);
    ASSERT_TRUE(status.ok()) << percent << ": " << status.message();
    EXPECT_LE(plan.peak, plan.capacity);
    const Walk w = walk(plan);
    EXPECT_TRUE(w.closes && w.fits && w.complete) << percent;
    EXPECT_EQ(w.link, plan.moved_per_step) << percent;
    if (moved) {
      EXPECT_LE(plan.moved_per_step, *moved) << percent;
    }
    moved = plan.moved_per_step;
  }
  // Processor time, on any machine and under sanitizers; enumeration would take hours.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2);
  plan.capacity = least - 1_B;
  EXPECT_EQ(solve_residency(plan, spec::Residency::kAuto).code(), ErrorCode::kDoesNotFit);
}

}  // namespace
}  // namespace neap::plan
