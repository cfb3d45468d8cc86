// The recorded RLHF run: every address, and nine measured settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "replay/summary.h"
#include "trace/reader.h"

namespace neap::replay {
namespace {

constexpr Bytes kH200{150'109'880'320};  // as cudaDeviceProp.totalGlobalMem says

const std::string kRun = NEAP_SOURCE_DIR "/tests/data/h200-rlhf/";

class RecordedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto recording = trace::read(kRun + "opt-lora.pickle.gz");
    ASSERT_TRUE(recording.ok()) << recording.status().message();
    recording_ = new trace::Recording(std::move(*recording));
    ASSERT_EQ(recording_->devices.size(), 1u);
    auto workload =
        prepare(*recording_, recording_->devices[0], {.phases_at = {}, .capacity = kH200});
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    workload_ = new Workload(std::move(*workload));
  }
  static void TearDownTestSuite() {
    delete workload_;
    delete recording_;
  }
  static trace::Recording* recording_;
  static Workload* workload_;
};
trace::Recording* RecordedRun::recording_ = nullptr;
Workload* RecordedRun::workload_ = nullptr;

TEST_F(RecordedRun, EveryAddressAndSegmentIsReproduced) {
  const auto fidelity = check_fidelity(*workload_);
  ASSERT_TRUE(fidelity.ok()) << fidelity.status().message();
  EXPECT_EQ(fidelity->allocs, 276'910u);
  EXPECT_EQ(fidelity->allocs_equal, fidelity->allocs);
  EXPECT_EQ(fidelity->segments, 1404u);
  EXPECT_EQ(fidelity->segments_equal, fidelity->segments);
  EXPECT_FALSE(fidelity->first_divergence.has_value());
  EXPECT_TRUE(fidelity->holds());
  EXPECT_EQ(workload_->allocator_events, 823'222u);
  EXPECT_EQ(workload_->anomalies.total(), 0u);
  EXPECT_EQ(fidelity->stats.fragmentation_at_peak.count(), 7'490'046'248u);
  EXPECT_EQ(fidelity->stats.fragmentation_max.count(), 8'220'876'520u);
}

TEST_F(RecordedRun, NineSettingsGiveWhatTheGpuMeasured) {
  const auto text = read_file(kRun + "opt-lora.jsonl");
  ASSERT_TRUE(text.ok()) << text.status().message();
  const auto scenarios = read_scenarios(*text, "opt-lora.jsonl", workload_->version);
  ASSERT_TRUE(scenarios.ok()) << scenarios.status().message();
  ASSERT_EQ(scenarios->size(), 9u);
  const auto outcomes = run_scenarios(*workload_, *scenarios, kH200, 2);
  std::string_view rest = *text;
  std::vector<double> widths;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto end = rest.find('\n');
    const auto line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    const auto truth = parse_json(line.substr(line.find('{')), "truth");
    ASSERT_TRUE(truth.ok());
    ASSERT_TRUE(outcomes[i].ok()) << outcomes[i].status().message();
    const Outcome& outcome = *outcomes[i];
    const auto within = [&](const char* key, std::uint64_t got, double tolerance) {
      const auto measured = (*truth)[key].get<double>();
      EXPECT_LE(std::abs(static_cast<double>(got) - measured), tolerance * measured)
          << key << " of line " << i + 1 << " (" << (*scenarios)[i].conf << ", "
          << (*scenarios)[i].empty.to_string() << "): " << got << " against " << measured;
    };
    within("peak_reserved", outcome.peak_reserved.count(), 0.001);
    within("peak_allocated", outcome.peak_allocated.count(), 0.001);
    within("num_device_alloc", outcome.driver_allocs, 0.02);
    within("num_device_free", outcome.driver_frees, 0.02);
    const auto in_range = [&](const char* key, double least, double most) {
      const auto measured = (*truth)[key].get<double>();
      EXPECT_TRUE(least * 0.999 <= measured && measured <= most * 1.001)
          << key << " of line " << i + 1 << ": " << measured << " is not in " << least << " to "
          << most;
    };
    const auto reserved = outcome.peak_reserved_range();
    const auto allocs = outcome.driver_allocs_range();
    in_range("peak_reserved", static_cast<double>(reserved.least.count()),
             static_cast<double>(reserved.most.count()));
    in_range("num_device_alloc", static_cast<double>(allocs.least),
             static_cast<double>(allocs.most));
    if (outcome.driver_frees == 0) {
      EXPECT_TRUE(reserved.is_one_number());
      EXPECT_TRUE(allocs.is_one_number());
    }
    widths.push_back(static_cast<double>((reserved.most - reserved.least).count()) /
                     static_cast<double>(reserved.least.count()));
    // What garbage collection leaves at the end depends on addresses most: −6.7 to +18.4 % over 40
    // orders, −2.0 % by the best estimate.
    const bool collects = scenarios->at(i).settings.garbage_collection_threshold > 0;
    within("end_reserved", outcome.end_reserved.count(), collects ? 0.025 : 0.01);
    EXPECT_EQ(outcome.retries, 0u);
    EXPECT_FALSE(outcome.oom.has_value());
  }
  std::sort(widths.begin(), widths.end());
  EXPECT_LT(widths[widths.size() / 2], 0.01);
}

TEST_F(RecordedRun, OnlyMarkedPhasesCount) {
  EXPECT_EQ(workload_->phase_names.size(), 7u) << "PyTorch's Optimizer.step marks are no phases";
  EXPECT_EQ(workload_->phases.size(), 28u);
}

TEST_F(RecordedRun, ATooSmallDeviceGivesAResult) {
  const auto scenario = Scenario::make("", "none", 0, workload_->version);
  const auto outcome = run_scenario(*workload_, *scenario, 12_GiB);
  ASSERT_TRUE(outcome.ok());
  ASSERT_TRUE(outcome->oom.has_value());
  EXPECT_EQ(outcome->oom->phase, "phase:train_actor");
  EXPECT_GT(outcome->oom->need, 0_B);
  EXPECT_LE(outcome->peak_reserved, 12_GiB);
  // 16.64 GiB were reserved, but 15 GiB are enough: the cache goes back when the device is full.
  const auto fits = run_scenario(*workload_, *scenario, 15_GiB);
  ASSERT_TRUE(fits.ok());
  EXPECT_FALSE(fits->oom.has_value());
  EXPECT_GT(fits->retries, 0u);
}

TEST_F(RecordedRun, AdviceBeatsWhatWasRecorded) {
  AdviceOptions options;
  options.capacity = kH200;
  options.threads = 2;
  const auto report = advise(*workload_, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->baseline_outcome.peak_reserved.count(), 17'869'832'192u);
  ASSERT_FALSE(report->ranked.empty());
  for (const Advice& advice : report->ranked) {
    EXPECT_LT(advice.outcome.peak_reserved, report->baseline_outcome.peak_reserved);
    EXPECT_EQ(advice.outcome.orders.size(),
              advice.outcome.released_segments ? kDefaultAddressOrders : 1);
    const bool holds = advice.saves_range.least * 200 >=
                       static_cast<std::int64_t>(report->baseline_outcome.peak_reserved.count());
    EXPECT_TRUE(holds || !advice.warnings.empty());
    EXPECT_FALSE(advice.why.empty());
    EXPECT_FALSE(advice.environment.empty() && advice.code.empty());
  }
}

TEST_F(RecordedRun, BlameAddsUp) {
  const auto event = peak_event(*workload_, kH200);
  ASSERT_TRUE(event.ok());
  const auto found = blame(*workload_, *event, kH200);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->reserved.count(), 17'869'832'192u);
  EXPECT_EQ(found->phase, "phase:train_actor");
  EXPECT_EQ(found->active + found->pinned + found->releasable, found->reserved);
  Bytes live;
  Bytes charged;
  for (const PinGroup& group : found->by_phase) {
    live += group.live;
    charged += group.share;
  }
  EXPECT_EQ(live, found->active);
  EXPECT_LE(charged, found->pinned);
  EXPECT_GT(charged + 1_MiB, found->pinned) << "shares lose less than a byte a unit and group";
  EXPECT_EQ(found->gaps.size(), 10u);
}

TEST_F(RecordedRun, JsonHasTheInterfacesKeys) {
  Summary summary;
  summary.workload = workload_;
  summary.fidelity = *check_fidelity(*workload_);
  auto scenario = *Scenario::make("expandable_segments:True", "all", 0, workload_->version);
  auto outcome = *run_scenario(*workload_, scenario, kH200);
  summary.what_if.push_back({std::move(scenario), std::move(outcome)});
  const Json json = to_json(summary);
  EXPECT_EQ(json["schema"], 1);
  for (const char* key : {"events", "peak_reserved", "peak_allocated", "driver_allocs",
                          "driver_frees", "fragmentation_at_peak"})
    EXPECT_TRUE(json["recorded"][key].is_number_integer()) << key;
  for (const char* key : {"allocs", "allocs_equal", "segments", "segments_equal"})
    EXPECT_TRUE(json["fidelity"][key].is_number_integer()) << key;
  EXPECT_TRUE(json["fidelity"]["first_divergence"].is_null());
  ASSERT_EQ(json["what_if"].size(), 1u);
  const Json& line = json["what_if"][0];
  EXPECT_EQ(line["conf"], "expandable_segments:True");
  EXPECT_EQ(line["empty"], "all");
  EXPECT_EQ(line["peak_reserved"], 16'953'376'768u);
  EXPECT_EQ(line["driver_allocs"], 3751);
  EXPECT_EQ(line["driver_frees"], 141);
  EXPECT_TRUE(line["oom"].is_null());
  EXPECT_TRUE(json["advice"].is_array());
  EXPECT_FALSE(to_text(summary).empty());
}

}  // namespace
}  // namespace neap::replay
