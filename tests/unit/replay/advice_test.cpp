// Advice on a recording made by hand, in which the settings that help differ by what they save.
#include "replay/advice.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/summary.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
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
    std::vector<std::uint64_t> cached(4);
    for (std::uint64_t& at : cached) at = segment(14);
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

TEST_F(ThreeWays, NothingIsAdvisedThatAddsToABetterAdvice) {
  // Expandable segments alone reach 100 MiB: neither rounding nor empty_cache improves that.
  const std::vector<Advice>& ranked = summary_.advice->ranked;
  EXPECT_EQ(of("expandable_segments:True,roundup_power2_divisions:8"), nullptr);
  EXPECT_EQ(of("neap phase pools"), nullptr);
  EXPECT_EQ(std::count_if(ranked.begin(), ranked.end(),
                          [](const Advice& advice) {
                            return advice.scenario.conf == "expandable_segments:True";
                          }),
            1);
}

TEST_F(ThreeWays, EachReasonNamesItsSetting) {
  EXPECT_THAT(of("expandable_segments:True")->why, StartsWith("Segments grow in place"));
  EXPECT_THAT(of("")->why, StartsWith("What each inference phase leaves free is released"));
  const Advice* const collected = of("garbage_collection_threshold:0.6");
  ASSERT_NE(collected, nullptr);
  EXPECT_THAT(collected->why, HasSubstr("egments that are idle longest are released"));
}

TEST_F(ThreeWays, OnlySettingsThatTheVersionKnowsAreTried) {
  const auto tried = [&](std::string_view setting, const char* version) {
    workload_.version = cache::PolicyVersion::for_version(version);
    const auto all = candidates(workload_, 1_GiB, 1_GiB);
    return std::any_of(all.begin(), all.end(), [&](const Scenario& scenario) {
      return scenario.conf.find(setting) != std::string::npos;
    });
  };
  EXPECT_TRUE(tried("large_segment_size_mb", "2.11"));
  EXPECT_FALSE(tried("large_segment_size_mb", "2.10"));
  EXPECT_TRUE(tried("expandable_segments", "2.1"));
  EXPECT_FALSE(tried("expandable_segments", "2.0"));
  EXPECT_TRUE(tried("neap phase pools", "2.0"));
}

TEST_F(ThreeWays, AdviceNamesTheVersionThatItNeeds) {
  EXPECT_THAT(of("expandable_segments:True")->warnings,
              Contains("expandable_segments needs PyTorch 2.1 or later."));
  EXPECT_THAT(of("")->warnings, Not(Contains(HasSubstr("PyTorch"))));
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

TEST(Candidates, KeepTheProgramsOwnEmptyCache) {
  Script script;
  script.add(EventKind::kSegmentAlloc, kBase, 20 * kMiB).add(EventKind::kAlloc, kBase, 15 * kMiB);
  script.free(kBase, 15 * kMiB).add(EventKind::kSegmentFree, kBase, 20 * kMiB);
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  const auto all = candidates(*workload, 1_GiB, 20_MiB);
  ASSERT_FALSE(all.empty());
  for (const Scenario& scenario : all)
    EXPECT_EQ(scenario.empty.to_string(), "recorded") << scenario.conf;
}

/// Four blocks of 9 MiB, two of them neighbours that are freed, then 18 MiB. By default each pair is
/// in a segment of 20 MiB and the freed ones cannot join: 58 MiB. Expandable segments take 40 MiB.
class TooSmall : public ::testing::Test {
 protected:
  void SetUp() override {
    using enum trace::EventKind;
    const std::uint64_t second = kBase + 20 * kMiB, third = kBase + 40 * kMiB;
    for (const std::uint64_t at : {kBase, second})
      script_.add(kSegmentAlloc, at, 20 * kMiB)
          .add(kAlloc, at, 9 * kMiB)
          .add(kAlloc, at + 9 * kMiB, 9 * kMiB);
    script_.free(kBase + 9 * kMiB, 9 * kMiB).free(second, 9 * kMiB);
    script_.add(kSegmentAlloc, third, 18 * kMiB).add(kAlloc, third, 18 * kMiB);
    script_
        .segment(
            kBase, 20 * kMiB,
            {{kBase, 9 * kMiB, 9 * kMiB, 0, kLive}, {kBase + 9 * kMiB, 11 * kMiB, 0, 0, kFree}},
            false)
        .segment(second, 20 * kMiB,
                 {{second, 9 * kMiB, 0, 0, kFree},
                  {second + 9 * kMiB, 9 * kMiB, 9 * kMiB, 0, kLive},
                  {second + 18 * kMiB, 2 * kMiB, 0, 0, kFree}},
                 false)
        .segment(third, 18 * kMiB, {{third, 18 * kMiB, 18 * kMiB, 0, kLive}}, false);
    auto workload = prepare(script_.recording, script_.device());
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    workload_ = std::move(workload).value();
  }
  Summary summarize(Bytes capacity) {
    Summary summary;
    summary.workload = &workload_;
    summary.capacity = capacity;
    summary.fidelity = *check_fidelity(workload_);
    EXPECT_TRUE(summary.fidelity.holds());
    AdviceOptions options;
    options.capacity = capacity;
    auto report = advise(workload_, options);
    EXPECT_TRUE(report.ok()) << report.status().message();
    summary.baseline = report->baseline_outcome;
    summary.advice = std::move(report).value();
    EXPECT_TRUE(summary.baseline.oom.has_value());
    return summary;
  }
  Script script_;
  Workload workload_;
};

TEST_F(TooSmall, AdviceIsWhatFitsAndHowFarBelow) {
  const Summary summary = summarize(50_MiB);
  ASSERT_FALSE(summary.advice->ranked.empty());
  const Advice& best = summary.advice->ranked.front();
  EXPECT_THAT(best.scenario.conf, HasSubstr("expandable_segments:True"));
  EXPECT_FALSE(best.outcome.oom.has_value());
  EXPECT_THAT(best.why, HasSubstr("it fits, with a peak of 40 MiB, 10 MiB below the capacity"));
  EXPECT_THAT(summary.advice->note, HasSubstr("tried settings fit into 50 MiB"));
  const std::string text = to_text(summary);
  EXPECT_THAT(text, Not(HasSubstr("falls from")));
  EXPECT_THAT(text, HasSubstr("Under a capacity of 50 MiB, the recorded settings run out of memory "
                              "at event 11 in (no phase): needs 18 MiB, 10 MiB free"));
  const Json json = to_json(summary);
  EXPECT_EQ(json["recorded_settings_oom"]["event"], 11);
  for (const Json& entry : json["advice"]) {
    EXPECT_TRUE(entry["saves"].is_null());
    EXPECT_TRUE(entry["saves_range"].is_null());
    EXPECT_TRUE(entry["oom"].is_null());
  }
  EXPECT_EQ(json["advice"][0]["below_capacity"], 10 * kMiB);
}

TEST_F(TooSmall, WhenNothingFitsTheNoteSaysHowFarItIs) {
  const Summary above = summarize(30_MiB);
  EXPECT_TRUE(above.advice->ranked.empty());
  EXPECT_THAT(above.advice->note, HasSubstr("tried settings fits into 30 MiB. What the program has "
                                            "allocated at its peak, 36 MiB, is 6 MiB more"));
  EXPECT_THAT(to_text(above), Not(HasSubstr("Nothing that PyTorch offers")));
  const Summary below = summarize(38_MiB);
  EXPECT_TRUE(below.advice->ranked.empty());
  EXPECT_THAT(below.advice->note,
              HasSubstr("The program has 36 MiB allocated at its peak, 2 MiB less than that. "));
  EXPECT_THAT(below.advice->note, HasSubstr(" gets furthest, to event "));
}

// The table of phases is the recording's, whatever the capacity.
TEST_F(TooSmall, PhasesAreTheRecordedOnes) {
  const auto workload = prepare(script_.recording, script_.device(),
                                {.phases_at = {*PhaseAt::parse("all=0s")}, .capacity = 30_MiB});
  ASSERT_TRUE(workload.ok());
  const auto fidelity = check_fidelity(*workload, {.capacity = 30_MiB});
  ASSERT_TRUE(fidelity.ok());
  ASSERT_EQ(fidelity->phases.size(), 1u);
  const PhaseFigures& all = fidelity->phases.front();
  EXPECT_EQ(all.name, "all");
  EXPECT_EQ(all.runs, 1u);
  EXPECT_EQ(all.peak_reserved, 58_MiB);
  EXPECT_EQ(all.peak_allocated, 36_MiB);
  EXPECT_EQ(all.end_reserved, 58_MiB);
  EXPECT_EQ(all.end_allocated, 36_MiB);
  EXPECT_EQ(all.driver_allocs, 3u);
  EXPECT_EQ(fidelity->stats.peak_reserved, 58_MiB);
}

}  // namespace
}  // namespace neap::replay
