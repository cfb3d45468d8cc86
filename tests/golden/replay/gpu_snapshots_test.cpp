// Small snapshots recorded on a GPU (tests/gpu/record_snapshots.py): each case is reproduced, and a
// replay under its own settings gives what torch.cuda.memory_stats measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "replay/fidelity.h"
#include "replay/what_if.h"
#include "trace/reader.h"

namespace neap::replay {
namespace {

const std::string kSnapshots = NEAP_SOURCE_DIR "/tests/data/gpu-snapshots/";

std::vector<Json> measured() {
  std::vector<Json> lines;
  const auto text = read_file(kSnapshots + "measured.jsonl");
  if (!text.ok()) return lines;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    if (auto json = parse_json(rest.substr(0, end), "measured.jsonl"); json.ok())
      lines.push_back(*json);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

class GpuSnapshot : public ::testing::TestWithParam<Json> {};

TEST_P(GpuSnapshot, IsReproduced) {
  const Json& truth = GetParam();
  const auto name = truth["name"].get<std::string>();
  const auto recording = trace::read(kSnapshots + name + ".pickle.gz");
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  ASSERT_EQ(recording->devices.size(), 1u);
  const Bytes capacity(truth["total_memory"].get<std::uint64_t>());
  const auto workload =
      prepare(*recording, recording->devices[0], {.phases_at = {}, .capacity = capacity});
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  EXPECT_EQ(workload->allocator_events, truth["events"].get<std::uint64_t>());
  EXPECT_EQ(workload->anomalies.total(), 0u);
  const auto fidelity = check_fidelity(*workload, {.capacity = capacity});
  ASSERT_TRUE(fidelity.ok()) << fidelity.status().message();
  if (fidelity->first_divergence) {
    ADD_FAILURE() << fidelity->first_divergence->event << ": " << fidelity->first_divergence->what
                  << "; " << fidelity->first_divergence->reason;
  }
  EXPECT_EQ(fidelity->allocs_equal, fidelity->allocs);
  EXPECT_EQ(fidelity->segments_equal, fidelity->segments);
  if (workload->initial_blocks > 0) return;  // a cut history: its peaks came before
  EXPECT_EQ(fidelity->stats.peak_reserved.count(), truth["peak_reserved"].get<std::uint64_t>());
  EXPECT_EQ(fidelity->stats.peak_allocated.count(), truth["peak_allocated"].get<std::uint64_t>());
  EXPECT_EQ(fidelity->stats.device_allocs, truth["num_device_alloc"].get<std::uint64_t>());
  EXPECT_EQ(fidelity->stats.device_frees, truth["num_device_free"].get<std::uint64_t>());
}

Json truth_of(std::string_view name) {
  for (Json& line : measured())
    if (line["name"] == name) return line;
  ADD_FAILURE() << "no case " << name;
  return {};
}

// Tensors are the program's, whatever the settings; what empty_cache() and a setting do must show.
TEST_P(GpuSnapshot, OtherSettingsMoveSegmentsAndNotTensors) {
  const Json& truth = GetParam();
  const auto recording = trace::read(kSnapshots + truth["name"].get<std::string>() + ".pickle.gz");
  ASSERT_TRUE(recording.ok());
  const auto workload = prepare(*recording, recording->devices[0]);
  ASSERT_TRUE(workload.ok());
  std::optional<Bytes> requested;
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:64"}) {
    for (const char* empty : {"none", "all", "recorded"}) {
      SCOPED_TRACE(std::string(conf) + ", " + empty);
      const auto scenario = Scenario::make(conf, empty, 0, workload->version);
      ASSERT_TRUE(scenario.ok());
      const auto outcome = run_scenario(*workload, *scenario, 80_GiB);
      ASSERT_TRUE(outcome.ok()) << outcome.status().message();
      EXPECT_FALSE(outcome->oom.has_value());
      EXPECT_EQ(outcome->events, workload->allocator_events);
      if (!requested) requested = outcome->peak_requested;
      EXPECT_EQ(outcome->peak_requested, *requested);
      EXPECT_GE(outcome->peak_allocated, outcome->peak_requested);
      EXPECT_GE(outcome->peak_reserved, outcome->peak_allocated);
      EXPECT_GE(outcome->end_reserved, outcome->end_allocated);
      if (std::string_view(empty) == "none") {
        EXPECT_EQ(outcome->empty_cache_calls, 0U);
      }
      if (std::string_view(empty) == "all") {
        EXPECT_EQ(outcome->empty_cache_calls, workload->phases.size());
      }
    }
  }
}

// The same program was recorded under more than one setting: what replaying one recording says about
// the other setting is what the GPU measured there.
struct Pair {
  const char* recorded;
  const char* predicted;
  /// The private pools of CUDA graphs were gone before the snapshot, and which segment was in which
  /// pool is worked out: reserved bytes then lie within a hundredth.
  bool pools_unknown = false;
};
void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.recorded << " gives " << pair.predicted;
}
class GpuSnapshotPair : public ::testing::TestWithParam<Pair> {};

TEST_P(GpuSnapshotPair, OneRecordingPredictsTheOtherMeasurement) {
  const Json from = truth_of(GetParam().recorded), to = truth_of(GetParam().predicted);
  const auto recording = trace::read(kSnapshots + from["name"].get<std::string>() + ".pickle.gz");
  ASSERT_TRUE(recording.ok());
  const Bytes capacity(to["total_memory"].get<std::uint64_t>());
  const auto workload =
      prepare(*recording, recording->devices[0], {.phases_at = {}, .capacity = capacity});
  ASSERT_TRUE(workload.ok());
  const auto scenario =
      Scenario::make(to["conf"].get<std::string>(), "recorded", 0, workload->version);
  ASSERT_TRUE(scenario.ok());
  const auto outcome = run_scenarios(*workload, {*scenario}, capacity, 2).front();
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->peak_allocated.count(), to["peak_allocated"].get<std::uint64_t>());
  if (GetParam().pools_unknown) {
    const auto measured_peak = to["peak_reserved"].get<double>();
    EXPECT_NEAR(static_cast<double>(outcome->peak_reserved.count()), measured_peak,
                0.01 * measured_peak);
    return;
  }
  EXPECT_EQ(outcome->peak_reserved.count(), to["peak_reserved"].get<std::uint64_t>());
  EXPECT_EQ(outcome->end_reserved.count(), to["end_reserved"].get<std::uint64_t>());
  // After a release, the driver's addresses decide how many segments are taken.
  const auto allocs = to["num_device_alloc"].get<std::uint64_t>();
  const auto range = outcome->driver_allocs_range();
  EXPECT_LE(range.least, allocs);
  EXPECT_GE(range.most, allocs);
  EXPECT_EQ(range.is_one_number(), !outcome->released_segments);
  EXPECT_EQ(outcome->driver_allocs - outcome->driver_frees,
            allocs - to["num_device_free"].get<std::uint64_t>());
}

INSTANTIATE_TEST_SUITE_P(
    , GpuSnapshotPair,
    ::testing::Values(Pair{"default", "expandable"}, Pair{"default", "roundup"},
                      Pair{"expandable", "default"}, Pair{"expandable", "roundup"},
                      Pair{"roundup", "default"}, Pair{"roundup", "expandable"},
                      Pair{"empty-cache", "expandable-empty-cache"},
                      Pair{"expandable-empty-cache", "empty-cache"},
                      Pair{"graph-pools", "graph-pools-expandable", true},
                      Pair{"graph-pools-expandable", "graph-pools", true}),
    [](const auto& param) {
      std::string name = std::string(param.param.recorded) + "_gives_" + param.param.predicted;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

INSTANTIATE_TEST_SUITE_P(, GpuSnapshot, ::testing::ValuesIn(measured()), [](const auto& param) {
  std::string name = param.param["name"].template get<std::string>();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(GpuSnapshots, AreAllThere) {
  EXPECT_EQ(measured().size(), 18u);
}

}  // namespace
}  // namespace neap::replay
