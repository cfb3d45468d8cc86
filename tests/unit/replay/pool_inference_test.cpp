// Private pools that were gone before the snapshot: programs with random captures are run by the
// allocator itself, their events are recorded without pools, and every address has to come out.
#include "replay/pool_inference.h"

#include <gtest/gtest.h>

#include <random>

#include "cache/sim_source.h"
#include "replay/what_if.h"

namespace neap::replay {
namespace {

struct Collector : trace::EventSink {
  void record(const trace::Event& event) override {
    events.push_back(event);
    events.back().pool = 0;                             // torch 2.11 writes none
    events.back().time_ns = 3'000'000 * events.size();  // so that releases look like calls
  }
  std::uint32_t intern(std::string_view) override { return 0; }
  std::vector<trace::Event> events;
};

/// A program that captures graphs on a side stream and drops most of them.
class Program {
 public:
  Program(std::uint32_t seed, const char* conf) : random_(seed) {
    cache::CacheOptions options;
    options.settings = *cache::Settings::parse(conf);
    options.events = &events_;
    allocator_.emplace(source_, options);
    settings_ = options.settings;
  }

  void work(int steps, cache::Stream stream, std::uint32_t pool,
            std::vector<cache::Address>& live) {
    for (int i = 0; i < steps; ++i) {
      const double exponent = 9 + 16 * std::generate_canonical<double, 32>(random_);
      live.push_back(*allocator_->malloc(Bytes(static_cast<std::uint64_t>(std::exp2(exponent))),
                                         stream, pool));
      while (!live.empty() && (live.size() > 60 || random_() % 100 < 45)) drop_one(live);
    }
  }

  /// `graphs` captures in turn; every third one is still there at the end. Two in a row can share a
  /// pool, as the graphs of an engine do.
  trace::Recording run(int graphs, bool share_pools) {
    std::vector<cache::Address> main;
    std::vector<std::pair<std::uint32_t, std::vector<cache::Address>>> captured;
    work(150, 0, 0, main);
    for (int graph = 0; graph < graphs; ++graph) {
      std::vector<cache::Address> warm_up;
      work(20, kSide, 0, warm_up);
      drop_all(warm_up);
      const auto pool = static_cast<std::uint32_t>(share_pools ? 1 + graph / 2 : 1 + graph);
      captured.push_back({pool, {}});
      work(40, kSide, pool, captured.back().second);
      work(60, 0, 0, main);
      if (graph % 3 == 2) {
        for (auto& [dropped, blocks] : captured) drop_all(blocks);
        for (auto& [dropped, blocks] : captured)
          if (dropped % 3 != 0) static_cast<void>(allocator_->release_pool(dropped));
        EXPECT_TRUE(allocator_->empty_cache().ok());
        captured.clear();
      }
    }
    work(100, 0, 0, main);
    return recording();
  }

  /// What the driver was asked for, the true value of a what-if under the same settings.
  [[nodiscard]] cache::CacheStats stats() const { return allocator_->stats(); }

 private:
  static constexpr cache::Stream kSide = 77;

  void drop_one(std::vector<cache::Address>& live) {
    const auto at = live.begin() + static_cast<long>(random_() % live.size());
    EXPECT_TRUE(allocator_->free(*at).ok());
    live.erase(at);
  }
  void drop_all(std::vector<cache::Address>& live) {
    while (!live.empty()) drop_one(live);
  }

  trace::Recording recording() {
    trace::Recording recording;
    recording.source = trace::Source::kTorchSnapshot;
    recording.settings.present = true;
    recording.settings.expandable_segments = settings_.expandable_segments;
    if (settings_.max_split_size != cache::kUnlimited)
      recording.settings.max_split_size =
          static_cast<std::int64_t>(settings_.max_split_size.count());
    recording.devices.resize(1);
    trace::DeviceRecording& device = recording.devices[0];
    device.has_times = true;
    device.events = events_.events;
    for (const auto& view : allocator_->snapshot()) {
      trace::Segment segment;
      segment.address = view.address;
      segment.size = view.size.count();
      segment.stream = view.stream;
      segment.small_pool = view.small_pool;
      segment.expandable = view.expandable;
      segment.pool = static_cast<std::uint8_t>(view.pool);
      segment.first_block = static_cast<std::uint32_t>(device.blocks.size());
      segment.block_count = static_cast<std::uint32_t>(view.blocks.size());
      for (const auto& block : view.blocks) {
        using State = cache::CachingAllocator::BlockView::State;
        device.blocks.push_back({block.address, block.size.count(), block.requested.count(), 0,
                                 block.state == State::kFree ? trace::BlockState::kFree
                                                             : trace::BlockState::kAllocated});
      }
      device.segments.push_back(segment);
    }
    return recording;
  }

  std::mt19937 random_;
  cache::Settings settings_;
  cache::SimSource source_{1_TiB};
  Collector events_;
  std::optional<cache::CachingAllocator> allocator_;
};

class DroppedGraphs : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(DroppedGraphs, EveryAddressComesOut) {
  const auto& [conf, share_pools] = GetParam();
  std::uint64_t wrong_without = 0;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Program program(seed, conf);
    const trace::Recording recording = program.run(9, share_pools);
    auto workload = prepare(recording, recording.devices[0]);
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    const auto fidelity = reproduce(*workload);
    ASSERT_TRUE(fidelity.ok());
    EXPECT_GT(workload->inferred_segments, 0u);
    EXPECT_EQ(fidelity->allocs_equal, fidelity->allocs);
    EXPECT_EQ(fidelity->segments_equal, fidelity->segments);
    if (fidelity->first_divergence) ADD_FAILURE() << fidelity->first_divergence->what;

    for (Op& op : workload->ops) op.route = workload->route({workload->routes[op.route].stream, 0});
    const auto without = check_fidelity(*workload);
    wrong_without += without->allocs - without->allocs_equal;
  }
  EXPECT_GT(wrong_without, 100u) << "the programs do not need their pools";
}

INSTANTIATE_TEST_SUITE_P(, DroppedGraphs,
                         ::testing::Combine(::testing::Values("", "max_split_size_mb:24"),
                                            ::testing::Bool()),
                         [](const auto& param) {
                           return std::string(*std::get<0>(param.param) ? "MaxSplit" : "Defaults") +
                                  (std::get<1>(param.param) ? "SharedPools" : "");
                         });

TEST(PoolInference, TheSameProgramKeepsItsPeakInAWhatIf) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Program program(seed, "");
    const trace::Recording recording = program.run(9, false);
    auto workload = prepare(recording, recording.devices[0]);
    ASSERT_TRUE(workload.ok());
    const auto scenario = Scenario::make("", "recorded", 0, workload->version);
    const auto outcome = run_scenario(*workload, *scenario, 1_TiB);
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->peak_reserved, program.stats().peak_reserved);
    EXPECT_EQ(outcome->driver_allocs, program.stats().device_allocs);
    EXPECT_EQ(outcome->driver_frees, program.stats().device_frees);
  }
}

TEST(PoolInference, ARecordingWithoutPoolsStaysAsItIs) {
  Program program(1, "");
  const trace::Recording recording = program.run(0, false);
  auto workload = prepare(recording, recording.devices[0]);
  ASSERT_TRUE(workload.ok());
  const auto fidelity = reproduce(*workload);
  ASSERT_TRUE(fidelity.ok());
  EXPECT_EQ(fidelity->allocs_equal, fidelity->allocs);
  EXPECT_EQ(workload->inferred_segments, 0u);
  EXPECT_TRUE(workload->notes.empty());
}

}  // namespace
}  // namespace neap::replay
