// The timeline of a live arena: resident bytes by tag must be what the arena itself says.
#include <gtest/gtest.h>

#include <random>

#include "arena/arena.h"
#include "device/sim/sim_device.h"
#include "report/history.h"

namespace neap::report {
namespace {

class Collector final : public trace::EventSink {
 public:
  Collector() {
    recording.source = trace::Source::kNeap;
    recording.devices.emplace_back();
  }
  void record(const trace::Event& event) override {
    recording.devices[0].events.push_back(event);
    recording.devices[0].events.back().time_ns = recording.devices[0].events.size();
  }
  std::uint32_t intern(std::string_view name) override { return recording.names.intern(name); }
  trace::Recording recording;
};

TEST(ArenaHistory, LayersAreWhatTheArenaHolds) {
  Collector sink;
  auto device_made = device::make_sim_device({.capacity = 512_MiB});
  ASSERT_TRUE(device_made.ok());
  const std::unique_ptr<device::SimDevice> device = std::move(device_made).value();
  arena::Options options;
  options.events = &sink;
  auto made = arena::Arena::make(*device, options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  arena::Arena& arena = **made;

  std::mt19937 random(11);
  const std::vector<std::string> tags{"actor.weights", "rollout.kv", "critic.optimizer"};
  std::vector<arena::RegionId> regions;
  std::size_t compared = 0, moved = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string& tag = tags[random() % tags.size()];
    const std::vector<std::string> one{tag};
    switch (random() % 7) {
      case 0: {
        const auto region = arena.create(tag, Bytes(1 + random() % (48u << 20)));
        if (region.ok()) regions.push_back(region->id);
        break;
      }
      case 1: {
        const auto region = arena.create_paused(tag, Bytes(1 + random() % (48u << 20)));
        if (region.ok()) regions.push_back(region->id);
        break;
      }
      case 2:
        if (!regions.empty()) {
          const std::size_t i = random() % regions.size();
          EXPECT_TRUE(arena.destroy(regions[i]).ok());
          regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      case 3:
      case 4:
        if (const auto done = arena.pause(one); done.ok()) moved += done->regions;
        break;
      default:
        if (const auto done = arena.resume(one); done.ok()) moved += done->regions;
        break;
    }
    if (round % 10 != 9) continue;
    const History history = build_history(sink.recording, sink.recording.devices[0]);
    const arena::Stats stats = arena.stats();
    const Leaves& leaves = history.leaves;
    ASSERT_GT(leaves.size(), 0u);
    EXPECT_EQ(leaves.reserved_low.back(), stats.physical.count()) << "round " << round;
    EXPECT_EQ(history.peak_reserved, stats.peak_physical.count()) << "round " << round;
    for (const arena::TagStats& tag_stats : stats.tags) {
      bool found = false;
      for (std::size_t layer = 0; layer < history.layers.size(); ++layer) {
        if (history.layers[layer].name != tag_stats.tag) continue;
        const std::uint64_t now = leaves.stack[(leaves.size() - 1) * leaves.layer_count + layer];
        EXPECT_EQ(now, tag_stats.mapped.count()) << tag_stats.tag << ", round " << round;
        found = true;
        ++compared;
      }
      EXPECT_TRUE(found || tag_stats.mapped.is_zero()) << tag_stats.tag << ", round " << round;
    }
  }
  EXPECT_GT(compared, 80u) << "nearly every tag has its layer in each of 30 rounds";
  EXPECT_GT(moved, 100u);
}

}  // namespace
}  // namespace neap::report
