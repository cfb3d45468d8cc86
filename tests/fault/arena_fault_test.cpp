// Every operation of the arena with every device call of it made to fail, one at a time: the
// documented state afterwards, the same operation again with success, and nothing left over.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "arena/arena.h"
#include "device/fault/fault_device.h"
#include "device/host/host_device.h"

namespace neap::arena {
namespace {

using device::FaultPlan;

const std::vector<std::string> kHere = {"here", "here2"};
const std::vector<std::string> kAway = {"away"};

/// A small world: two tags here with every policy, one tag away on the host, one on disk.
class World {
 public:
  World() {
    device::HostOptions host;
    host.capacity = 24_MiB;
    host.granularity = 64_KiB;
    below_ = std::move(device::make_host_device(host)).value();
    device_ = device::make_fault_device(*below_);
    Options options;
    options.touch_threads = 1;
    arena_ = std::move(Arena::make(*device_, options)).value();
    arena_->set_page_limit("here", 256_KiB);
    add("here", 1_MiB, Policy::kHost);
    add("here", 192_KiB, Policy::kHost);
    add("here2", 512_KiB, Policy::kDisk);
    add("away", 1_MiB, Policy::kHost);
    add("away", 640_KiB, Policy::kDisk);
    for (std::size_t i = 0; i < regions_.size(); ++i) paint(i);
    EXPECT_TRUE(arena_->pause(kAway).ok());
    EXPECT_TRUE(arena_->release_store().ok());
    before_ = states();
  }

  Arena& arena() { return *arena_; }
  device::FaultDevice& device() { return *device_; }
  RegionId id(std::size_t i) const { return regions_[i].id; }

  std::vector<State> states() const {
    std::vector<State> all;
    for (const RegionInfo& region : regions_) {
      const auto info = arena_->info(region.id);
      all.push_back(info.ok() ? info->state : State::kPausing);
    }
    return all;
  }
  const std::vector<State>& before() const { return before_; }
  /// Contents of every resident region, and of all after a resume.
  bool intact() const {
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const auto info = arena_->info(regions_[i].id);
      if (!info.ok() || info->state != State::kResident || info->mapped != info->size) continue;
      if (!painted(i)) return false;
    }
    return true;
  }
  /// Ends the arena; true when the device holds nothing any more.
  bool clean_end() {
    device_->arm({});
    arena_.reset();
    return below_->usage() == device::Ledger::Usage{} && below_->registered_hosts() == 0;
  }

 private:
  void add(const char* tag, Bytes size, Policy policy) {
    regions_.push_back(std::move(arena_->create(tag, size, policy)).value());
  }
  unsigned char* bytes(std::size_t i) const {
    return reinterpret_cast<unsigned char*>(regions_[i].address);
  }
  void paint(std::size_t i) {
    for (std::size_t b = 0; b < regions_[i].size.count(); ++b)
      bytes(i)[b] = static_cast<unsigned char>(b * 31 + b / 4096 + i * 7);
  }
  bool painted(std::size_t i) const {
    for (std::size_t b = 0; b < regions_[i].size.count(); ++b)
      if (bytes(i)[b] != static_cast<unsigned char>(b * 31 + b / 4096 + i * 7)) return false;
    return true;
  }

  std::unique_ptr<device::HostDevice> below_;
  std::unique_ptr<device::FaultDevice> device_;
  std::unique_ptr<Arena> arena_;
  std::vector<RegionInfo> regions_;
  std::vector<State> before_;
};

struct Operation {
  std::string name;
  std::function<Status(World&)> run;
  bool keeps_contents = true;
};

template <class T>
Status outcome(const Result<T>& result) {
  return result.ok() ? Status() : result.status();
}

std::vector<Operation> operations() {
  return {
      {"create", [](World& w) { return outcome(w.arena().create("new", 700_KiB, Policy::kHost)); }},
      {"create_paused", [](World& w) { return outcome(w.arena().create_paused("new", 1_MiB)); }},
      {"pause", [](World& w) { return outcome(w.arena().pause(kHere)); }},
      {"pause_release",
       [](World& w) {
         PauseOptions options;
         options.release_pages = true;
         return outcome(w.arena().pause(kHere, options));
       }},
      {"pause_discard",
       [](World& w) {
         PauseOptions options;
         options.policy = Policy::kDiscard;
         return outcome(w.arena().pause(kHere, options));
       },
       false},
      {"pause_streams",
       [](World& w) {
         PauseOptions options;
         options.fence = Fence::of({device::StreamId::kDefault});
         return outcome(w.arena().pause(kHere, options));
       }},
      {"resume", [](World& w) { return outcome(w.arena().resume(kAway)); }},
      {"exchange", [](World& w) { return outcome(w.arena().exchange(kHere, kAway)); }},
      {"alias", [](World& w) { return outcome(w.arena().alias("twin", w.id(0))); }},
      {"prepare", [](World& w) { return w.arena().prepare(kHere); }},
      {"shrink", [](World& w) { return outcome(w.arena().shrink(w.id(0), 256_KiB, 512_KiB)); },
       false},
      {"grow",
       [](World& w) {
         NEAP_TRY(outcome(w.arena().shrink(w.id(0), 256_KiB, 512_KiB)));
         return outcome(w.arena().grow(w.id(0), 256_KiB, 512_KiB));
       },
       false},
      {"destroy",
       [](World& w) {
         const Status status = w.arena().destroy(w.id(1));
         return status.code() == ErrorCode::kNotFound ? Status() : status;
       }},
  };
}

class ArenaFault : public testing::TestWithParam<Operation> {};

TEST_P(ArenaFault, EveryCallFailsOnce) {
  const Operation& operation = GetParam();
  for (const ErrorCode code : {ErrorCode::kDriver, ErrorCode::kOutOfDeviceMemory}) {
    std::uint64_t k = 1;
    for (;; ++k) {
      ASSERT_LT(k, 500u);
      World world;
      FaultPlan plan;
      plan.fail_at = k;
      plan.code = code;
      world.device().arm(plan);
      const Status status = operation.run(world);
      if (!world.device().fired()) {
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(world.clean_end());
        break;
      }
      SCOPED_TRACE(operation.name + ": call " + std::to_string(k) + " (" +
                   std::string(to_string(*world.device().failed_call())) + ") " +
                   (status.ok() ? "" : status.message()));
      world.device().arm({});
      if (!status.ok()) {
        EXPECT_EQ(world.states(), world.before());
      }
      if (operation.keeps_contents || !status.ok()) {
        EXPECT_TRUE(world.intact());
      }
      const Status again = operation.run(world);
      EXPECT_TRUE(again.ok()) << again.message();
      if (operation.keeps_contents) {
        EXPECT_TRUE(world.arena().resume({}).ok());
        EXPECT_TRUE(world.intact());
      }
      EXPECT_TRUE(world.clean_end());
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(k, 1u) << "no device call was seen";
  }
}

// From the k-th call on everything fails, as when the device is lost: the arena reports, does not
// hang, and gives everything back once the device answers again.
TEST_P(ArenaFault, EveryCallFailsFromThereOn) {
  const Operation& operation = GetParam();
  for (std::uint64_t k = 1;; ++k) {
    ASSERT_LT(k, 500u);
    World world;
    FaultPlan plan;
    plan.fail_at = k;
    plan.stays = true;
    plan.code = ErrorCode::kDeviceLost;
    world.device().arm(plan);
    (void)operation.run(world);
    const auto failed = world.device().failed_call();
    SCOPED_TRACE(operation.name + ": from call " + std::to_string(k) +
                 (failed ? " (" + std::string(to_string(*failed)) + ")" : ""));
    EXPECT_TRUE(world.clean_end());
    if (!failed || testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ArenaFault, testing::ValuesIn(operations()),
                         [](const auto& operation) { return operation.param.name; });

}  // namespace
}  // namespace neap::arena
