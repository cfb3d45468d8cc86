// What is said about a recording that began in the middle of the program.
#include "replay/cut_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/summary.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A block of 20 MiB lives before the first event. The window allocates 30 MiB.
class CutRecording : public ::testing::Test {
 protected:
  void live(std::uint64_t at, std::uint64_t size) {
    script_.segment(at, size * kMiB, {{at, size * kMiB, size * kMiB, 0, kLive}}, false);
  }
  void summarize() {
    auto workload = prepare(script_.recording, script_.device());
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    workload_ = std::move(workload).value();
    summary_.workload = &workload_;
    summary_.fidelity = *check_fidelity(workload_);
    ASSERT_TRUE(summary_.fidelity.holds());
    auto cut = find_cut(workload_, summary_.fidelity);
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    summary_.cut = *cut;
    for (const char* conf : {"", "expandable_segments:True"}) {
      auto scenario = *Scenario::make(conf, "none", 0, workload_.version);
      auto outcome = *run_scenario(workload_, scenario, 1_GiB);
      summary_.what_if.push_back({std::move(scenario), std::move(outcome)});
    }
    AdviceOptions options;
    options.capacity = 1_GiB;
    options.cut = summary_.cut;
    auto advice = advise(workload_, options);
    ASSERT_TRUE(advice.ok()) << advice.status().message();
    summary_.advice = *advice;
  }
  Script script_;
  Workload workload_;
  Summary summary_;
};

/// A free segment of 100 MiB from before the window holds the 30 MiB: no event says what it was for.
class CachedBefore : public CutRecording {
 protected:
  void SetUp() override {
    const std::uint64_t cached = kBase + 100 * kMiB;
    script_.add(EventKind::kAlloc, cached, 30 * kMiB);
    live(kBase, 20);
    script_.segment(
        cached, 100 * kMiB,
        {{cached, 30 * kMiB, 30 * kMiB, 0, kLive}, {cached + 30 * kMiB, 70 * kMiB, 0, 0, kFree}},
        false);
    summarize();
  }
};

TEST_F(CachedBefore, NoAdviceIsGiven) {
  ASSERT_TRUE(summary_.cut.has_value());
  EXPECT_EQ(summary_.cut->blocks, 1u);
  EXPECT_EQ(summary_.cut->live, 20_MiB);
  EXPECT_EQ(summary_.cut->reserved, 120_MiB);
  EXPECT_EQ(summary_.cut->recorded_peak, 120_MiB);
  EXPECT_EQ(summary_.cut->replayed_peak, 50_MiB);
  EXPECT_FALSE(summary_.cut->comparable());
  EXPECT_THAT(summary_.advice->ranked, IsEmpty());
  EXPECT_THAT(summary_.advice->note, HasSubstr("history is cut"));
}

TEST_F(CachedBefore, AllSettingsBeginAlike) {
  for (const WhatIf& line : summary_.what_if) {
    const bool expandable = !line.scenario.conf.empty();
    EXPECT_EQ(line.outcome.peak_reserved, expandable ? 60_MiB : 50_MiB) << line.scenario.conf;
    EXPECT_LT(line.outcome.fragmentation_overhead, line.outcome.peak_reserved);
  }
}

TEST_F(CachedBefore, TextAndJsonSayWhyAndWhatToDo) {
  const std::string text = to_text(summary_);
  EXPECT_THAT(text, HasSubstr("no savings and no advice"));
  EXPECT_THAT(text, HasSubstr("with a larger max_entries"));
  EXPECT_THAT(text, HasSubstr("What if, in the recorded window"));
  EXPECT_THAT(text, HasSubstr("no segment events"));
  EXPECT_THAT(text, Not(HasSubstr("0 of 0")));
  const Json json = to_json(summary_);
  EXPECT_EQ(json["history_cut"]["comparable"], false);
  EXPECT_EQ(json["history_cut"]["blocks"], 1);
  EXPECT_EQ(json["history_cut"]["live"], 20 * kMiB);
  EXPECT_EQ(json["history_cut"]["reserved"], 120 * kMiB);
  EXPECT_EQ(json["history_cut"]["replayed_peak"], 50 * kMiB);
  EXPECT_EQ(json["advice"], Json::array());
  EXPECT_EQ(json["advice_note"], summary_.advice->note);
  EXPECT_EQ(json["warnings"][0], summary_.cut->explanation());
  EXPECT_EQ(json["recorded"]["peak_reserved"], 120 * kMiB);
}

// Weights were loaded before the recording began: the state at its start does not matter.
TEST_F(CutRecording, SettingsAreComparedWhereTheStartDoesNotMatter) {
  const std::uint64_t next = kBase + 100 * kMiB;
  script_.add(EventKind::kSegmentAlloc, next, 30 * kMiB).add(EventKind::kAlloc, next, 30 * kMiB);
  live(kBase, 20);
  live(next, 30);
  summarize();
  ASSERT_TRUE(summary_.cut.has_value());
  EXPECT_EQ(summary_.cut->replayed_peak, 50_MiB);
  EXPECT_TRUE(summary_.cut->comparable());
  EXPECT_THAT(summary_.cut->explanation(), HasSubstr("so settings can be compared"));
  EXPECT_THAT(summary_.advice->note, Not(HasSubstr("cut")));
}

// The program got another address than the replay gives.
TEST_F(CutRecording, ARunThatIsNotReproducedIsComparedRoughly) {
  const std::uint64_t next = kBase + 100 * kMiB;
  script_.add(EventKind::kSegmentAlloc, next, 60 * kMiB)
      .add(EventKind::kAlloc, next + 30 * kMiB, 30 * kMiB);
  live(kBase, 20);
  script_.segment(
      next, 60 * kMiB,
      {{next, 30 * kMiB, 0, 0, kFree}, {next + 30 * kMiB, 30 * kMiB, 30 * kMiB, 0, kLive}}, false);
  auto workload = prepare(script_.recording, script_.device());
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  const Fidelity fidelity = *check_fidelity(*workload);
  ASSERT_FALSE(fidelity.holds());
  auto cut = *find_cut(*workload, fidelity);
  ASSERT_TRUE(cut.has_value());
  cut->replayed_peak = cut->recorded_peak;
  EXPECT_TRUE(cut->comparable());
  EXPECT_THAT(cut->explanation(), Not(HasSubstr("so settings can be compared")));
}

TEST_F(CutRecording, AWholeHistoryIsNotCut) {
  script_.add(EventKind::kSegmentAlloc, kBase, 30 * kMiB).add(EventKind::kAlloc, kBase, 30 * kMiB);
  live(kBase, 30);
  summarize();
  EXPECT_FALSE(summary_.cut.has_value());
  EXPECT_TRUE(to_json(summary_)["history_cut"].is_null());
  EXPECT_THAT(to_text(summary_), Not(HasSubstr("window")));
}

}  // namespace
}  // namespace neap::replay
