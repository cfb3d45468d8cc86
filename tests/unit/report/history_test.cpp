#include "report/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "base/json.h"
#include "report/envelope.h"
#include "report/load_report.h"
#include "trace/reader.h"
#include "trace/writer.h"
#include "unit/report/synthetic.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::filesystem::path snapshots() {
  return std::filesystem::path(NEAP_SOURCE_DIR) / "tests/data/gpu-snapshots";
}

trace::Recording read_snapshot(const std::string& name) {
  auto recording = trace::read(snapshots() / (name + ".pickle.gz"));
  EXPECT_TRUE(recording.ok()) << recording.status().message();
  return recording.ok() ? std::move(recording).value() : trace::Recording();
}

// What PyTorch itself counted on the GPU, byte for byte: block sizes are rebuilt from addresses,
// through streams, private pools, expandable segments, out-of-memory retries and rounding.
TEST(History, PeaksAsMeasuredOnTheGpu) {
  std::ifstream lines(snapshots() / "measured.jsonl");
  std::size_t compared = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto measured = parse_json(line, "measured.jsonl");
    ASSERT_TRUE(measured.ok());
    const std::string name = (*measured)["name"].get<std::string>();
    if (name.find("cut-ring") != std::string::npos) continue;  // its peak is before the trace
    SCOPED_TRACE(name);
    const trace::Recording recording = read_snapshot(name);
    ASSERT_EQ(recording.devices.size(), 1u);
    const History history = build_history(recording, recording.devices[0]);
    EXPECT_EQ(history.peak_reserved, (*measured)["peak_reserved"].get<std::uint64_t>());
    EXPECT_EQ(history.peak_total, (*measured)["peak_allocated"].get<std::uint64_t>());
    EXPECT_EQ(history.driver_allocs, (*measured)["num_device_alloc"].get<std::uint64_t>());
    EXPECT_EQ(history.driver_frees, (*measured)["num_device_free"].get<std::uint64_t>());
    EXPECT_EQ(history.leaves.reserved_low.back(), (*measured)["end_reserved"].get<std::uint64_t>());
    EXPECT_FALSE(history.started_in_the_middle);
    EXPECT_EQ(history.unmatched_frees, 0u);
    ++compared;
  }
  EXPECT_GE(compared, 10u);
}

// A ring buffer keeps only the last events: what was there before comes from the final segments.
TEST(History, ACutTraceIsRewound) {
  for (const char* const name : {"default", "multi-stream", "expandable", "expandable-empty-cache",
                                 "empty-cache", "max-split", "roundup", "graph-pools"}) {
    SCOPED_TRACE(name);
    const trace::Recording whole = read_snapshot(name);
    const std::size_t all = whole.devices.at(0).events.size(), kept = all / 2;
    trace::Recording cut = whole;
    auto& events = cut.devices[0].events;
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(kept));
    const History before = build_history(whole, whole.devices[0]);
    const History after = build_history(cut, cut.devices[0]);
    ASSERT_EQ(before.leaves.total_high.size() >= after.leaves.total_high.size(), true);
    // Both are exact here: as many leaves as changes. Compared from the end backwards.
    const auto tail = [&](const std::vector<std::uint64_t>& values) {
      return std::vector<std::uint64_t>(
          values.end() - static_cast<std::ptrdiff_t>(after.leaves.size() - 1), values.end());
    };
    const auto whole_total = tail(before.leaves.total_high),
               cut_total = tail(after.leaves.total_high);
    for (std::size_t i = 0; i < whole_total.size(); ++i) {
      // The real size of some old blocks is not in a cut file; see rewind().
      ASSERT_LE(cut_total[i], whole_total[i]);
      ASSERT_NEAR(static_cast<double>(cut_total[i]), static_cast<double>(whole_total[i]),
                  static_cast<double>(whole_total[i]) / 100);
    }
    EXPECT_EQ(tail(before.leaves.reserved_high), tail(after.leaves.reserved_high));
    EXPECT_EQ(after.unmatched_frees, 0u);
  }
}

TEST(History, TagsAndTransientsOfARun) {
  const SyntheticRun run = SyntheticRun::two_steps();
  const History history = build_history(run.recording, run.recording.devices[0]);
  std::vector<std::string> names;
  for (const Layer& layer : history.layers) names.push_back(layer.name);
  EXPECT_THAT(names, testing::ElementsAre("actor.weights", "rollout.kv", "actor.optimizer",
                                          "generate", "train_actor", ""));
  EXPECT_TRUE(history.physical);
  EXPECT_EQ(history.peak_reserved, 116 * kMiB);
  EXPECT_EQ(history.peak_total, 116 * kMiB - 8 * kMiB);
  EXPECT_EQ(history.copied, 32 * kMiB);
  EXPECT_EQ(history.layers[2].peak, 32 * kMiB);
  ASSERT_EQ(history.phases.size(), 4u);
  EXPECT_EQ(history.phases[1].name, "train_actor");
  EXPECT_EQ(history.phases[1].peak_reserved, 116 * kMiB);
  EXPECT_EQ(history.phases[1].driver_allocs, 1u);
  // The optimizer and the KV cache are never there together.
  const Leaves& leaves = history.leaves;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const std::uint64_t* const stack = &leaves.stack[i * leaves.layer_count];
    EXPECT_TRUE(stack[1] == 0 || stack[2] == 0) << i;
    std::uint64_t sum = 0;
    for (std::size_t layer = 0; layer < leaves.layer_count; ++layer) sum += stack[layer];
    EXPECT_EQ(sum, leaves.total_high[i]);
  }
}

TEST(History, ManyPhasesShareOneLayer) {
  SyntheticRun run;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "phase:p" + std::to_string(i);
    run.add(trace::EventKind::kPhaseBegin, name, 0, 0);
    run.add(trace::EventKind::kAlloc, "", 0x1000 * static_cast<std::uint64_t>(i + 1), 512);
    run.add(trace::EventKind::kPhaseEnd, name, 0, 0);
  }
  HistoryOptions options;
  options.max_birth_layers = 8;
  const History history = build_history(run.recording, run.recording.devices[0], options);
  EXPECT_EQ(history.layers.size(), 9u);
  EXPECT_EQ(history.layers.back().name, "other phases");
  EXPECT_EQ(history.peak_total, 100u * 512);
  EXPECT_EQ(history.phases[7].name, "p7");
}

// PyTorch's own annotations take no memory away from the phase around them.
TEST(History, AnnotationsOfPyTorchAreNoPhases) {
  for (const std::string prefix : {"phase:", ""}) {
    SyntheticRun run;
    run.add(trace::EventKind::kPhaseBegin, prefix + "train", 0, 0);
    run.add(trace::EventKind::kPhaseBegin, "Optimizer.step#AdamW.step", 0, 0);
    run.add(trace::EventKind::kSegmentAlloc, "", 0x40000000, 20 * kMiB);
    run.add(trace::EventKind::kAlloc, "", 0x40000000, 12 * kMiB);
    run.add(trace::EventKind::kPhaseEnd, "Optimizer.step#AdamW.step", 0, 0);
    run.add(trace::EventKind::kPhaseEnd, prefix + "train", 0, 0);
    const History history = build_history(run.recording, run.recording.devices[0]);
    ASSERT_EQ(history.phases.size(), 1u) << prefix;
    EXPECT_EQ(history.phases[0].name, "train");
    EXPECT_EQ(history.phases[0].depth, 0u);
    ASSERT_EQ(history.layers.size(), 2u);
    EXPECT_EQ(history.layers[0].name, "train");
    EXPECT_EQ(history.layers[0].peak, 12 * kMiB);
  }
}

TEST(History, PhasesOfTheRecordings) {
  const std::filesystem::path data = std::filesystem::path(NEAP_SOURCE_DIR) / "tests/data";
  std::size_t annotated = 0;
  for (const char* const folder : {"what-if", "gpu-snapshots"}) {
    for (const auto& file : std::filesystem::directory_iterator(data / folder)) {
      if (file.path().extension() != ".gz") continue;
      const auto recording = trace::read(file.path());
      ASSERT_TRUE(recording.ok()) << recording.status().message();
      if (recording->names.find("Optimizer.step#AdamW.step") != 0) ++annotated;
      for (const PhaseSpan& span : build_history(*recording, recording->devices.at(0)).phases)
        ASSERT_EQ(span.name.find("Optimizer."), std::string::npos) << file.path();
    }
  }
  EXPECT_GT(annotated, 0u);
}

TEST(History, SurvivesAnEmptyOrBrokenTrace) {
  trace::Recording recording;
  recording.devices.emplace_back();
  EXPECT_EQ(build_history(recording, recording.devices[0]).peak_total, 0u);
  // Frees of nothing, ends without begins, times that run backwards, a block born twice.
  SyntheticRun run;
  run.add(trace::EventKind::kFreeCompleted, "", 42, 512);
  run.add(trace::EventKind::kPhaseEnd, "x", 0, 0);
  run.add(trace::EventKind::kSegmentFree, "", 77, 2 * kMiB);
  run.add(trace::EventKind::kPause, "ghost", 0, kMiB);
  run.add(trace::EventKind::kRelease, "", 9, kMiB);
  run.time_ns = 0;
  run.add(trace::EventKind::kAlloc, "", 4096, 512);
  run.add(trace::EventKind::kAlloc, "", 4096, 1024);
  run.add(trace::EventKind::kPhaseBegin, "open", 0, 0);
  const History history = build_history(run.recording, run.recording.devices[0]);
  EXPECT_EQ(history.peak_total, 1024u);
  EXPECT_EQ(history.unmatched_frees, 1u);
  ASSERT_EQ(history.phases.size(), 1u);
  EXPECT_EQ(history.phases[0].end_ns, history.end_ns);
}

// Fewer leaves than events: every peak and every low of the exact series is still there.
TEST(History, CoarseLeavesKeepEveryPeak) {
  const trace::Recording recording = read_snapshot("phases");
  const History exact = build_history(recording, recording.devices.at(0));
  HistoryOptions options;
  options.max_leaves = 256;
  const History coarse = build_history(recording, recording.devices[0], options);
  ASSERT_LE(coarse.leaves.size(), 300u);
  EXPECT_EQ(coarse.peak_total, exact.peak_total);
  EXPECT_EQ(coarse.phases.size(), exact.phases.size());
  for (std::size_t i = 0; i < coarse.leaves.size(); ++i) {
    const std::uint64_t begin = coarse.leaves.first_event[i];
    const std::uint64_t end =
        i + 1 < coarse.leaves.size() ? coarse.leaves.first_event[i + 1] : ~0ull;
    std::uint64_t high = 0, low = ~0ull, reserved = 0, peak_ns = 0;
    for (std::size_t j = 0; j < exact.leaves.size(); ++j) {
      // The leaf before the first event has index 0 as well.
      if (exact.leaves.first_event[j] < begin || exact.leaves.first_event[j] >= end) continue;
      if (exact.leaves.total_high[j] > high) peak_ns = exact.leaves.peak_ns[j];
      high = std::max(high, exact.leaves.total_high[j]);
      low = std::min(low, exact.leaves.total_low[j]);
      reserved = std::max(reserved, exact.leaves.reserved_high[j]);
    }
    ASSERT_EQ(coarse.leaves.total_high[i], high) << i;
    if (high > 0) {
      ASSERT_EQ(coarse.leaves.peak_ns[i], peak_ns) << i;
    }
    ASSERT_EQ(coarse.leaves.total_low[i], low) << i;
    ASSERT_EQ(coarse.leaves.reserved_high[i], reserved) << i;
  }
}

TEST(Envelope, EqualsBruteForce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t size = 1 + random() % 300;
    std::vector<std::uint64_t> high(size), low(size);
    for (std::size_t i = 0; i < size; ++i) {
      low[i] = random() % 50;
      high[i] = low[i] + random() % 50;
    }
    const Envelope envelope(high, low);
    for (int query = 0; query < 50; ++query) {
      const std::size_t begin = random() % size, end = begin + 1 + random() % (size - begin);
      const auto first = high.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = high.begin() + static_cast<std::ptrdiff_t>(end);
      const Envelope::Range range = envelope.query(begin, end);
      ASSERT_EQ(range.high, *std::max_element(first, last));
      ASSERT_EQ(range.highest,
                static_cast<std::size_t>(std::max_element(first, last) - high.begin()));
      ASSERT_EQ(range.low, *std::min_element(low.begin() + static_cast<std::ptrdiff_t>(begin),
                                             low.begin() + static_cast<std::ptrdiff_t>(end)));
    }
  }
}

TEST(SegmentMap, TheStateAtAnEvent) {
  const trace::Recording recording = read_snapshot("default");
  const trace::DeviceRecording& device = recording.devices.at(0);
  HistoryOptions options;
  options.capture_events = {0, device.events.size() / 2, device.events.size() - 1};
  const History history = build_history(recording, device, options);
  ASSERT_EQ(history.maps.size(), 3u);
  const SegmentMap& end = history.maps[2];
  // The file's own final segments.
  ASSERT_EQ(end.segments.size(), device.segments.size());
  std::uint64_t reserved = 0, allocated = 0, empty = 0;
  for (const trace::Segment& segment : device.segments) {
    reserved += segment.size;
    std::uint64_t used = 0;
    for (const trace::Block& block : device.blocks_of(segment))
      if (block.state != trace::BlockState::kFree) used += block.size;
    allocated += used;
    if (used == 0) empty += segment.size;
  }
  EXPECT_EQ(end.reserved, reserved);
  EXPECT_EQ(end.allocated, allocated);
  EXPECT_EQ(end.whole_segments_free, empty);
  EXPECT_GE(end.segments.front().range.size, end.segments.back().range.size);
  for (const SegmentMap& map : history.maps) {
    for (const SegmentMap::Segment& segment : map.segments) {
      std::uint64_t last = 0;
      for (const SegmentMap::Block& block : segment.blocks) {
        EXPECT_GE(block.offset, last);
        last = block.offset + block.size;
      }
      EXPECT_LE(last, segment.range.size);
    }
  }
}

TEST(SegmentMap, JoinsNeighboursWhenThereAreTooMany) {
  AddressSpace space{cache::Settings()};
  space.add_segment(0, {64ull * 512, 0, 0, false, true});
  for (std::uint64_t i = 0; i < 64; ++i)
    if (i != 20) space.add_block(i * 512, 512);
  const SegmentMap map = SegmentMap::capture(space, 10);
  ASSERT_EQ(map.segments.size(), 1u);
  ASSERT_EQ(map.segments[0].blocks.size(), 2u);
  EXPECT_EQ(map.segments[0].blocks[0].count, 20u);
  EXPECT_EQ(map.segments[0].blocks[1].size, 43u * 512);
  EXPECT_EQ(map.largest_gap, 512u);
}

TEST(SegmentMap, AFreeSegmentIsNoGap) {
  AddressSpace space{cache::Settings()};
  space.add_segment(0, {20 * kMiB, 0, 0, false, false});
  space.add_segment(64 * kMiB, {20 * kMiB, 0, 0, false, false});
  space.add_block(64 * kMiB, 14 * kMiB);
  const SegmentMap map = SegmentMap::capture(space);
  EXPECT_EQ(map.largest_gap, 6 * kMiB);
  EXPECT_EQ(map.whole_segments_free, 20 * kMiB);
}

TEST(Gather, OtherDevicesOfARecordingAreNoted) {
  trace::Recording recording = SyntheticRun::two_steps().recording;
  const TemporaryFolder folder;
  const auto notes = [&] {
    const auto path = folder.path() / "trace.neap";
    EXPECT_TRUE(trace::write(path, recording).ok());
    const auto report = load_report(path);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->notes : std::vector<std::string>();
  };
  EXPECT_THAT(notes(), testing::Not(testing::Contains(testing::HasSubstr("is shown"))));
  trace::DeviceRecording other = recording.devices[0];
  other.ordinal = 1;
  for (trace::Event& event : other.events) event.device = 1;
  recording.devices.push_back(std::move(other));
  EXPECT_THAT(notes(), testing::Contains("device 0 of 2 is shown; --device chooses another"));
}

TEST(Gather, MoreAllocatedThanReservedIsNoted) {
  SyntheticRun run;
  run.add(trace::EventKind::kSegmentAlloc, "", 0x40000000, 20 * kMiB);
  run.add(trace::EventKind::kAlloc, "", 0x40000000, 12 * kMiB);
  const auto notes = [&] {
    const auto report = make_report(run.recording, "test", {}, {});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->notes : std::vector<std::string>();
  };
  EXPECT_THAT(notes(), testing::IsEmpty());
  run.add(trace::EventKind::kAlloc, "", 1ull << 50, 1ull << 62);
  EXPECT_THAT(notes(), testing::Contains(testing::HasSubstr("more is allocated (")));
}

TEST(Gather, MomentsAndTheirMistakes) {
  EXPECT_EQ(*parse_duration("3.2s"), 3.2);
  EXPECT_EQ(*parse_duration("120 ms"), 0.12);
  EXPECT_EQ(*parse_duration("2min"), 120.0);
  for (const char* const wrong : {"", "3", "s", "-1s", "3 parsecs", "nans", "1e300s"})
    EXPECT_EQ(parse_duration(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;

  LoadOptions options;
  options.at = {"peak", "end", "#3", "1ns", "peak-allocated"};
  auto report = load_report(snapshots() / "phases.pickle.gz", options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->history.maps.size(), 5u);
  EXPECT_EQ(report->history.maps[0].label, "at " + duration_text(0));
  EXPECT_EQ(report->history.maps[1].event, 3u);
  EXPECT_EQ(report->history.maps[4].label, "at the end");
  options.at = {"99s"};
  const Status late = load_report(snapshots() / "phases.pickle.gz", options).status();
  EXPECT_EQ(late.code(), ErrorCode::kInvalidArgument);
  const std::string length =
      duration_text(static_cast<double>(report->history.end_ns) * 1e-9) + " long";
  EXPECT_NE(late.message().find(length), std::string::npos) << late.message();
  const std::size_t last = read_snapshot("phases").devices.at(0).events.size() - 1;
  options.at = {"#" + std::to_string(last)};
  report = load_report(snapshots() / "phases.pickle.gz", options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->history.maps.at(0).event, last);
  options.at = {"#" + std::to_string(last + 1)};
  EXPECT_FALSE(load_report(snapshots() / "phases.pickle.gz", options).ok());
  options.at = {"#99999999"};
  EXPECT_EQ(load_report(snapshots() / "phases.pickle.gz", options).status().code(),
            ErrorCode::kInvalidArgument);
  options = {};
  options.device = 3;
  EXPECT_THAT(load_report(snapshots() / "phases.pickle.gz", options).status().message(),
              testing::HasSubstr("no device 3; it has 0"));
  EXPECT_EQ(load_report(snapshots()).status().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(load_report(snapshots() / "README.md").ok());
}

}  // namespace
}  // namespace neap::report
