// Rewinding, phases and odd traces, on recordings made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/fidelity.h"
#include "replay/summary.h"
#include "replay/what_if.h"
#include "unit/replay/script.h"

namespace neap::replay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Workload, RewindsACutTrace) {
  // Before the trace: A (1024 at 0) and B (512 at 1024) live. In it: A dies, C takes its place.
  Script script;
  script.free(kBase, 1000)
      .add(EventKind::kAlloc, kBase, 600)
      .segment(kBase, 2 << 20,
               {{kBase, 1024, 600, 0, kLive},
                {kBase + 1024, 512, 500, 0, kLive},
                {kBase + 1536, (2 << 20) - 1536, 0, 0, kFree}});
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->initial_blocks, 2u);
  ASSERT_EQ(workload->initial_segments.size(), 1u);
  const auto& blocks = workload->initial_segments[0].blocks;
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].size, 1024_B);
  EXPECT_EQ(blocks[0].requested, 1000_B);
  EXPECT_EQ(blocks[1].size, 512_B);
  const auto fidelity = check_fidelity(*workload);
  ASSERT_TRUE(fidelity.ok()) << fidelity.status().message();
  EXPECT_EQ(fidelity->allocs_equal, 1u);
  EXPECT_TRUE(fidelity->holds());
}

TEST(Workload, AnAllocationShowsWhereTheBlockBeforeItEnds) {
  // A asked for 4 MiB and got a free block of 4.5 MiB whole. Its size is in no event: A dies. C takes
  // the lower of two free blocks of 15.5 MiB; if A had 4 MiB, the upper one would be smaller.
  const std::uint64_t half = kMiB / 2;
  const std::uint64_t upper = kBase + 20 * kMiB;
  Script script;
  script.add(EventKind::kAlloc, kBase + 9 * half, 3 * kMiB)
      .free(kBase, 4 * kMiB)
      .segment(kBase, 20 * kMiB,
               {{kBase, 9 * half, 0, 0, kFree},
                {kBase + 9 * half, 3 * kMiB, 3 * kMiB, 0, kLive},
                {kBase + 15 * half, 25 * half, 0, 0, kFree}},
               false)
      .segment(upper, 31 * half, {{upper, 31 * half, 0, 0, kFree}}, false);
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->initial_segments[0].blocks[0].size, Bytes(9 * half));
  EXPECT_EQ(workload->guessed_sizes, 0u);
  const auto fidelity = check_fidelity(*workload);
  ASSERT_TRUE(fidelity.ok()) << fidelity.status().message();
  EXPECT_EQ(fidelity->allocs_equal, 1u);
}

TEST(Workload, AnAllocationTooFarBehindABlockSaysNothingOfItsSize) {
  // Between A and C an unknown block of 2 MiB must have lived: A would have been split.
  Script script;
  script.add(EventKind::kAlloc, kBase + 6 * kMiB, 3 * kMiB)
      .free(kBase, 4 * kMiB)
      .segment(kBase, 20 * kMiB,
               {{kBase, 6 * kMiB, 0, 0, kFree},
                {kBase + 6 * kMiB, 3 * kMiB, 3 * kMiB, 0, kLive},
                {kBase + 9 * kMiB, 11 * kMiB, 0, 0, kFree}},
               false);
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->initial_segments[0].blocks[0].size, 4_MiB);
  EXPECT_EQ(workload->guessed_sizes, 1u);
}

TEST(Workload, AWrongAddressIsFoundAndExplained) {
  Script script;
  script.add(EventKind::kSegmentAlloc, kBase, 2 << 20)
      .add(EventKind::kAlloc, kBase, 512)
      .add(EventKind::kAlloc, kBase + 4096, 512)  // best fit would give kBase + 512
      .segment(kBase, 2 << 20,
               {{kBase, 512, 512, 0, kLive},
                {kBase + 512, 3584, 0, 0, kFree},
                {kBase + 4096, 512, 512, 0, kLive},
                {kBase + 4608, (2 << 20) - 4608, 0, 0, kFree}});
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  const auto fidelity = check_fidelity(*workload);
  ASSERT_TRUE(fidelity.ok());
  EXPECT_EQ(fidelity->allocs_equal, 1u);
  EXPECT_EQ(fidelity->allocs, 2u);
  EXPECT_FALSE(fidelity->holds());
  ASSERT_TRUE(fidelity->first_divergence.has_value());
  EXPECT_EQ(fidelity->first_divergence->event, 2u);
  EXPECT_FALSE(fidelity->first_divergence->reason.empty());
  Summary summary;
  summary.workload = &*workload;
  summary.fidelity = *fidelity;
  const std::string text = to_text(summary);
  EXPECT_THAT(text, HasSubstr("1 of 2 addresses equal (50.00 %)"));
  EXPECT_THAT(text, HasSubstr("1 of 1 segment events (100.00 %)"));
  EXPECT_THAT(text, HasSubstr("BELOW 99.9 %"));
  summary.fidelity.allocs_equal = 2;
  EXPECT_THAT(to_text(summary), Not(HasSubstr("BELOW")));
}

TEST(Workload, AnEqualAddressCountsThoughTheReplayNeedsNoNewSegment) {
  Script script;  // the second segment was made for something else
  script.add(EventKind::kSegmentAlloc, kBase, 2 << 20)
      .add(EventKind::kAlloc, kBase, 512)
      .add(EventKind::kSegmentAlloc, kBase + (2 << 20), 2 << 20)
      .add(EventKind::kAlloc, kBase + 512, 512)
      .segment(kBase, 2 << 20,
               {{kBase, 512, 512, 0, kLive},
                {kBase + 512, 512, 512, 0, kLive},
                {kBase + 1024, (2 << 20) - 1024, 0, 0, kFree}})
      .segment(kBase + (2 << 20), 2 << 20, {{kBase + (2 << 20), 2 << 20, 0, 0, kFree}});
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  const auto fidelity = check_fidelity(*workload);
  ASSERT_TRUE(fidelity.ok());
  EXPECT_EQ(fidelity->allocs, 2u);
  EXPECT_EQ(fidelity->allocs_equal, 2u);
  ASSERT_TRUE(fidelity->first_divergence.has_value());
  EXPECT_THAT(fidelity->first_divergence->what, HasSubstr("in a new segment"));
}

TEST(Workload, UnreadableSettingsAreANoteAndTheSingleValuesCount) {
  Script script;
  script.recording.settings.conf = "max_split_size_mb:many";
  script.recording.settings.max_split_size = 32 << 20;
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->settings.max_split_size, 32_MiB);
  EXPECT_THAT(workload->notes, ElementsAre(HasSubstr("settings text is not readable")));
  EXPECT_EQ(recorded_settings(script.recording, nullptr).max_split_size, 32_MiB);
  script.recording.settings.conf = "max_split_size_mb:32";
  EXPECT_THAT(prepare(script.recording, script.device())->notes, IsEmpty());
}

TEST(Workload, TheFileShowsThatItsPyTorchIsOlderThanItsNewestSettings) {
  trace::Recording recording;
  recording.source = trace::Source::kTorchSnapshot;
  std::vector<std::string> notes;
  EXPECT_FALSE(recorded_version(recording, &notes).large_segment_size_key);
  EXPECT_EQ(notes.size(), 1u);
  recording.settings.present = true;
  recording.settings.json = R"({"expandable_segments": false})";
  EXPECT_FALSE(recorded_version(recording, nullptr).large_segment_size_key);
  recording.settings.json = R"({"graph_capture_record_stream_reuse": false})";
  EXPECT_TRUE(recorded_version(recording, nullptr).large_segment_size_key);
  recording = {};
  EXPECT_TRUE(recorded_version(recording, nullptr).large_segment_size_key);
}

TEST(Workload, MissingFreesAreCountedAndBelieved) {
  Script script;  // the free of the first block was dropped by skip_actions
  script.add(EventKind::kSegmentAlloc, kBase, 2 << 20)
      .add(EventKind::kAlloc, kBase, 512)
      .add(EventKind::kAlloc, kBase, 512)
      .free(kBase, 512)
      .free(kBase + std::uint64_t{9999} * 512, 512)
      .segment(kBase, 2 << 20, {{kBase, 2 << 20, 0, 0, kFree}});
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->anomalies.allocs_over_live, 1u);
  EXPECT_GE(workload->anomalies.frees_of_unknown, 1u);
  const auto scenario = Scenario::make("", "none", 0, workload->version);
  const auto outcome = run_scenario(*workload, *scenario, 1_GiB);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
}

TEST(Workload, PhasesFromMarksTimesAndNestedOnes) {
  Script script;
  script.phase(EventKind::kPhaseBegin, "outer")
      .phase(EventKind::kPhaseBegin, "Optimizer.step#AdamW.step")
      .phase(EventKind::kPhaseEnd, "Optimizer.step#AdamW.step")
      .phase(EventKind::kPhaseBegin, "compile_fx_inner (dynamo_timed)")
      .phase(EventKind::kPhaseEnd, "compile_fx_inner (dynamo_timed)")
      .phase(EventKind::kPhaseBegin, "inner")
      .add(EventKind::kSegmentAlloc, kBase, 2 << 20)
      .add(EventKind::kAlloc, kBase, 512)
      .phase(EventKind::kPhaseEnd, "inner")
      .phase(EventKind::kPhaseEnd, "outer")
      .segment(kBase, 2 << 20,
               {{kBase, 512, 512, 0, kLive}, {kBase + 512, (2 << 20) - 512, 0, 0, kFree}});
  const auto marked = prepare(script.recording, script.device());
  ASSERT_TRUE(marked.ok());
  EXPECT_EQ(marked->phase_names, (std::vector<std::string>{"outer", "inner"}));
  EXPECT_EQ(marked->phase_name(marked->blocks[0].birth_phase), "inner");

  const auto timed = prepare(
      script.recording, script.device(),
      {.phases_at = {*PhaseAt::parse("late=5us"), *PhaseAt::parse("early=0s")}, .capacity = {}});
  ASSERT_TRUE(timed.ok());
  EXPECT_EQ(timed->phase_name(timed->blocks[0].birth_phase), "late");
  for (const char* wrong : {"x", "=1s", "x=", "x=1", "x=1h", "x=-1s", "x=@"})
    EXPECT_FALSE(PhaseAt::parse(wrong).ok()) << wrong;
}

TEST(Workload, EmptyPolicies) {
  const auto inference = EmptyPolicy::parse("inference");
  EXPECT_TRUE(inference.after("phase:generate"));
  EXPECT_FALSE(inference.after("phase:train_actor"));
  EXPECT_FALSE(inference.after("training"));
  EXPECT_TRUE(EmptyPolicy::parse("training").after("train"));
  const auto named = EmptyPolicy::parse("generate, phase:reward");
  EXPECT_TRUE(named.after("phase:generate"));
  EXPECT_TRUE(named.after("reward"));
  EXPECT_FALSE(named.after("phase:values"));
  EXPECT_EQ(EmptyPolicy::parse("").to_string(), "none");
  EXPECT_EQ(named.to_string(), "generate,phase:reward");
}

TEST(Workload, APendingFreeHoldsItsBlockUntilItCompletes) {
  Script script;
  script.add(EventKind::kSegmentAlloc, kBase, 2 << 20)
      .add(EventKind::kAlloc, kBase, 512)
      .add(EventKind::kFreeRequested, kBase, 512)
      .add(EventKind::kAlloc, kBase + 512, 512)
      .add(EventKind::kFreeCompleted, kBase, 512)
      .add(EventKind::kAlloc, kBase, 512)
      .segment(kBase, 2 << 20,
               {{kBase, 512, 512, 0, kLive},
                {kBase + 512, 512, 512, 0, kLive},
                {kBase + 1024, (2 << 20) - 1024, 0, 0, kFree}});
  const auto workload = prepare(script.recording, script.device());
  ASSERT_TRUE(workload.ok());
  const auto fidelity = check_fidelity(*workload);
  ASSERT_TRUE(fidelity.ok());
  EXPECT_EQ(fidelity->allocs_equal, 3u);
  // Under a capacity that forces a retry the pending free is completed early.
  const auto scenario = Scenario::make("", "none", 0, workload->version);
  EXPECT_TRUE(run_scenario(*workload, *scenario, 2_MiB).ok());
}

}  // namespace
}  // namespace neap::replay
