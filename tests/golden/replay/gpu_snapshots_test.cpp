// Small snapshots recorded on a GPU (tests/gpu/record_snapshots.py): each case is reproduced, and a
// replay under its own settings gives what torch.cuda.memory_stats measured.
#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "base/json.h"
#include "replay/fidelity.h"
#include "replay/what_if.h"
#include "trace/reader.h"

namespace neap::replay {
namespace {

const std::string kFolder = NEAP_SOURCE_DIR "/tests/data/gpu-snapshots/";

std::vector<Json> measured() {
  std::vector<Json> lines;
  const auto text = read_file(kFolder + "measured.jsonl");
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
  const auto recording = trace::read(kFolder + name + ".pickle.gz");
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

TEST_P(GpuSnapshot, RunsUnderOtherSettings) {
  const auto name = GetParam()["name"].get<std::string>();
  const auto recording = trace::read(kFolder + name + ".pickle.gz");
  ASSERT_TRUE(recording.ok());
  const auto workload = prepare(*recording, recording->devices[0]);
  ASSERT_TRUE(workload.ok());
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:64"}) {
    for (const char* empty : {"none", "all", "recorded"}) {
      const auto scenario = Scenario::make(conf, empty, 0, workload->version);
      ASSERT_TRUE(scenario.ok());
      const auto outcome = run_scenario(*workload, *scenario, 80_GiB);
      ASSERT_TRUE(outcome.ok()) << conf << ", " << empty << ": " << outcome.status().message();
      EXPECT_FALSE(outcome->oom.has_value());
      EXPECT_GE(outcome->peak_reserved, outcome->peak_allocated);
    }
  }
}

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
