// Advice on a recording made by hand, in which the settings that help differ by what they save.
#include "replay/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/summary.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// Generation leaves four free segments of 14 MiB. Training needs three blocks of 30 MiB, frees two
/// and needs 50 MiB: 196 MiB under the defaults, 140 MiB when the cache is emptied after generation,
/// 100 MiB when segments expand, because the two freed blocks join.
class ThreeWays : public ::testing::Test {
 protected:
  void SetUp() override {
    using enum trace::EventKind;
    std::uint64_t next = kBase;
    const auto segment = [&](std::uint64_t size) {
      const std::uint64_t at = next;
      script_.add(kSegmentAlloc, at, size * kMiB).add(kAlloc, at, size * kMiB);
      next = at + size * kMiB;
      return at;
    };
    script_.phase(kPhaseBegin, "phase:generate");
    std::vector<std::uint64_t> cached;
    for (int i = 0; i < 4; ++i) cached.push_back(segment(14));
    for (const std::uint64_t at : cached) script_.free(at, 14 * kMiB);
    script_.phase(kPhaseEnd, "phase:generate").phase(kPhaseBegin, "phase:train");
    const std::uint64_t first = segment(30), second = segment(30), third = segment(30);
    script_.free(first, 30 * kMiB).free(second, 30 * kMiB);
    const std::uint64_t last = segment(50);
    script_.phase(kPhaseEnd, "phase:train");
    for (const std::uint64_t at : cached) whole(at, 14, false);
    for (const std::uint64_t at : {first, second}) whole(at, 30, false);
    whole(third, 30, true);
    whole(last, 50, true);
    auto workload = prepare(script_.recording, script_.device());
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    workload_ = std::move(workload).value();
    auto fidelity = check_fidelity(workload_);
    ASSERT_TRUE(fidelity.ok());
    ASSERT_TRUE(fidelity->holds()) << fidelity->first_divergence->what;
    summary_.workload = &workload_;
    summary_.fidelity = *fidelity;
    AdviceOptions options;
    options.capacity = 1_GiB;
    options.most = 100;
    auto report = advise(workload_, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    summary_.baseline = report->baseline_outcome;
    summary_.advice = std::move(report).value();
  }
  void whole(std::uint64_t at, std::uint64_t size, bool live) {
    script_.segment(at, size * kMiB,
                    {{at, size * kMiB, live ? size * kMiB : 0, 0, live ? kLive : kFree}}, false);
  }
  /// Of the first advice with this setting.
  const Advice* of(std::string_view conf) {
    for (const Advice& advice : summary_.advice->ranked)
      if (advice.scenario.conf == conf) return &advice;
    return nullptr;
  }
  Script script_;
  Workload workload_;
  Summary summary_;
};

TEST_F(ThreeWays, TheLowestPeakComesFirst) {
  EXPECT_EQ(summary_.advice->baseline_outcome.peak_reserved, Bytes(196 * kMiB));
  const std::vector<Advice>& ranked = summary_.advice->ranked;
  ASSERT_GE(ranked.size(), 3u);
  EXPECT_EQ(ranked.front().outcome.peak_reserved, Bytes(100 * kMiB));
  EXPECT_EQ(ranked.front().scenario.conf, "expandable_segments:True");
  EXPECT_EQ(ranked.front().scenario.empty.to_string(), "none");
  // Peaks within half a percent of what the program needs are equal.
  const Bytes unit(summary_.advice->baseline_outcome.peak_requested.count() / 200);
  for (std::size_t i = 1; i < ranked.size(); ++i)
    EXPECT_LE(ranked[i - 1].outcome.peak_reserved, ranked[i].outcome.peak_reserved + unit) << i;
  ASSERT_NE(of(""), nullptr);
  EXPECT_EQ(of("")->outcome.peak_reserved, Bytes(140 * kMiB));
}

TEST_F(ThreeWays, EachReasonNamesItsSetting) {
  EXPECT_THAT(of("expandable_segments:True")->why, StartsWith("Segments grow in place"));
  EXPECT_THAT(of("")->why, StartsWith("What each inference phase leaves free is released"));
  const Advice* const collected = of("garbage_collection_threshold:0.6");
  ASSERT_NE(collected, nullptr);
  EXPECT_THAT(collected->why, HasSubstr("egments that are idle longest are released"));
}

TEST_F(ThreeWays, TheJsonHasEveryAdviceWithItsKeys) {
  const Json list = to_json(summary_)["advice"];
  ASSERT_EQ(list.size(), summary_.advice->ranked.size());
  const Advice& best = summary_.advice->ranked.front();
  EXPECT_EQ(list[0]["conf"], "expandable_segments:True");
  EXPECT_EQ(list[0]["empty"], "none");
  EXPECT_EQ(list[0]["peak_reserved"], 100 * kMiB);
  EXPECT_EQ(list[0]["saves"], 96 * kMiB);
  EXPECT_EQ(list[0]["saves_range"], Json({96 * kMiB, 96 * kMiB}));
  EXPECT_EQ(list[0]["why"], best.why);
  EXPECT_EQ(list[0]["environment"], "export PYTORCH_CUDA_ALLOC_CONF=\"expandable_segments:True\"");
  EXPECT_EQ(list[0]["code"], "");
  EXPECT_EQ(list[0]["warnings"].size(), best.warnings.size());
}

}  // namespace
}  // namespace neap::replay
