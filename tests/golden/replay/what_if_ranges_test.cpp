// Recordings of diverse programs (tests/gpu/record_what_if.py): what the GPU measured under other
// settings lies within the range that the replay gives, and the ranges are narrow.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "replay/pool_inference.h"
#include "replay/what_if.h"
#include "trace/reader.h"

namespace neap::replay {
namespace {

const std::string kPrograms = NEAP_SOURCE_DIR "/tests/data/what-if/";

std::vector<Json> measured(const std::string& work) {
  std::vector<Json> lines;
  const auto text = read_file(kPrograms + "measured.jsonl");
  if (!text.ok()) return lines;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\n'), rest.size());
    if (auto json = parse_json(rest.substr(0, end), "measured.jsonl");
        json.ok() && (*json)["work"] == work)
      lines.push_back(*json);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

class RecordedProgram : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedProgram, MeasuredValuesLieWithinTheRanges) {
  const std::string name = GetParam();
  std::string work = name;
  for (const char* suffix : {"-emptied", "-expandable"})
    if (const auto at = work.find(suffix); at != std::string::npos) work.resize(at);
  const std::vector<Json> truths = measured(work);
  ASSERT_GE(truths.size(), 10u);
  const auto recording = trace::read(kPrograms + name + ".pickle.gz");
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  const Bytes capacity(truths.front()["total_memory"].get<std::uint64_t>());
  auto workload =
      prepare(*recording, recording->devices[0], {.phases_at = {}, .capacity = capacity});
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  const auto fidelity = reproduce(*workload, {.capacity = capacity});
  ASSERT_TRUE(fidelity.ok());
  EXPECT_EQ(fidelity->allocs_equal, fidelity->allocs);
  EXPECT_EQ(fidelity->segments_equal, fidelity->segments);

  std::vector<Scenario> scenarios;
  scenarios.reserve(truths.size());
  for (const Json& truth : truths)
    scenarios.push_back(*Scenario::make(truth["conf"].get<std::string>(),
                                        truth["empty"].get<std::string>(),
                                        truth["fraction"].get<double>(), workload->version));
  const auto outcomes = run_scenarios(*workload, scenarios, capacity, 2);
  std::vector<double> widths;
  for (std::size_t i = 0; i < truths.size(); ++i) {
    SCOPED_TRACE(truths[i].dump());
    ASSERT_TRUE(outcomes[i].ok()) << outcomes[i].status().message();
    const Outcome& outcome = *outcomes[i];
    EXPECT_EQ(outcome.oom.has_value(), truths[i]["oom"].get<bool>());
    const auto expect_in = [&](const char* key, std::uint64_t least, std::uint64_t most) {
      const auto value = truths[i][key].get<double>();
      EXPECT_LE(0.999 * static_cast<double>(least), value) << key;
      EXPECT_GE(1.001 * static_cast<double>(most), value) << key;
    };
    const auto reserved = outcome.peak_reserved_range();
    const auto allocs = outcome.driver_allocs_range();
    expect_in("peak_reserved", reserved.least.count(), reserved.most.count());
    // Recorded with torch.cuda.graph, measured with bare captures: not quite the same program.
    const std::uint64_t slack = work == "grpo-graphs" ? 10 : 0;
    expect_in("num_device_alloc", allocs.least - slack, allocs.most + slack);
    EXPECT_GE(outcome.peak_reserved, reserved.least);
    EXPECT_LE(outcome.peak_reserved, reserved.most);
    if (outcome.driver_frees == 0) {
      EXPECT_TRUE(reserved.is_one_number());
      EXPECT_TRUE(allocs.is_one_number());
    }
    widths.push_back(static_cast<double>((reserved.most - reserved.least).count()) /
                     static_cast<double>(reserved.least.count()));
  }
  std::sort(widths.begin(), widths.end());
  // Few sizes make nearly every choice a tie: the program is built to depend on addresses.
  EXPECT_LT(widths[widths.size() / 2], work == "equal-sizes" ? 0.03 : 0.01);
}

// The figures of phases are the recording's: reserved memory as the segment events alone give it.
TEST_P(RecordedProgram, PhasesAreWhatTheSegmentEventsSay) {
  const auto recording = trace::read(kPrograms + GetParam() + ".pickle.gz");
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  auto workload = prepare(*recording, recording->devices[0]);
  ASSERT_TRUE(workload.ok()) << workload.status().message();
  ASSERT_TRUE(workload->starts_empty());
  const auto fidelity = reproduce(*workload, {});
  ASSERT_TRUE(fidelity.ok());
  std::vector<std::uint64_t> reserved = {0};  // before each event
  for (const trace::Event& event : recording->devices[0].events) {
    const auto taken = event.kind == trace::EventKind::kSegmentAlloc ||
                       event.kind == trace::EventKind::kSegmentMap;
    const auto given = event.kind == trace::EventKind::kSegmentFree ||
                       event.kind == trace::EventKind::kSegmentUnmap;
    reserved.push_back(reserved.back() + (taken ? event.size : 0) - (given ? event.size : 0));
  }
  std::vector<std::uint64_t> peaks(workload->phase_names.size());
  for (const PhaseRun& run : workload->phases)
    peaks[run.name] =
        std::max(peaks[run.name], *std::max_element(reserved.begin() + run.first_event,
                                                    reserved.begin() + run.last_event + 1));
  ASSERT_EQ(fidelity->phases.size(), peaks.size());
  for (std::size_t i = 0; i < peaks.size(); ++i)
    EXPECT_EQ(fidelity->phases[i].peak_reserved.count(), peaks[i]) << fidelity->phases[i].name;
}

INSTANTIATE_TEST_SUITE_P(, RecordedProgram,
                         ::testing::Values("ppo", "ppo-emptied", "ppo-expandable", "ppo-lora",
                                           "ppo-offload", "grpo-graphs", "sft", "fragments",
                                           "fragments-emptied", "equal-sizes", "engine"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace neap::replay
