// Every operation of the arena with every device call of it made to fail, one at a time: the
// documented state afterwards, the same operation again with success, and nothing left over.
#include <gtest/gtest.h>

#include <functional>

#include "arena/arena.h"
#include "arena/transfer_lane.h"
#include "conformance/device_words.h"
#include "conformance/devices.h"

namespace neap::arena {
namespace {

using device::Call;
using device::FaultPlan;

const std::vector<std::string> kHere = {"here", "here2"};
const std::vector<std::string> kAway = {"away"};

constexpr std::uint64_t kCapacityUnits = 384;

/// The device under all worlds of a test, and the suite's own way to its memory.
struct Ground {
  explicit Ground(const device::DeviceMaker& maker)
      : unit(maker.unit), made(maker.make(maker.unit * kCapacityUnits)) {
    if (made.real != nullptr)
      words = std::make_unique<device::DeviceWords>(*made.real, std::size_t{1} << 20);
  }
  Bytes unit;
  device::MadeDevice made;
  std::unique_ptr<device::DeviceWords> words;
};

/// A small world: two tags here with every policy, one tag away on the host, one on disk. Sizes are
/// in the device's units.
class World {
 public:
  static auto contents(std::size_t i) {
    return [i](std::size_t word) { return (word + 1) * 0x9e3779b97f4a7c15u + i; };
  }
  explicit World(Ground& ground) : ground_(ground), registered_(real().registered_hosts()) {
    Options options;
    options.touch_threads = 1;
    arena_ = std::move(Arena::make(device(), options)).value();
    arena_->set_page_limit("here", units(4));
    add("here", 16, Policy::kHost);
    add("here", 3, Policy::kHost);
    add("here2", 8, Policy::kDisk);
    add("away", 16, Policy::kHost);
    add("away", 10, Policy::kDisk);
    for (std::size_t i = 0; i < regions_.size(); ++i) paint(i);
    EXPECT_TRUE(arena_->pause(kAway).ok());
    EXPECT_TRUE(arena_->release_store().ok());
    before_ = states();
  }

  Arena& arena() { return *arena_; }
  device::FaultDevice& device() { return *ground_.made.fault; }
  RegionId id(std::size_t i) const { return regions_[i].id; }
  Bytes units(std::uint64_t n) const { return ground_.unit * n; }

  std::vector<State> states() const {
    std::vector<State> all;
    for (const RegionInfo& region : regions_) {
      const auto info = arena_->info(region.id);
      all.push_back(info.ok() ? info->state : State::kPausing);
    }
    return all;
  }
  const std::vector<State>& before() const { return before_; }
  /// Until the end: memory that the driver refuses to unpin stays pinned.
  const HostStorage* keep(std::unique_ptr<HostStorage> storage) {
    return storages_.emplace_back(std::move(storage)).get();
  }
  /// Contents of every resident region, and of all after a resume.
  bool intact() const {
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const auto info = arena_->info(regions_[i].id);
      if (!info.ok() || info->state != State::kResident || info->mapped != info->size) continue;
      if (!ground_.words->holds(regions_[i].address, regions_[i].size, contents(i))) return false;
    }
    return true;
  }
  /// Ends the arena; true when the device holds nothing of it any more.
  bool clean_end() {
    device().arm({});
    storages_.clear();
    arena_.reset();
    return real().usage() == device::Ledger::Usage{} && real().registered_hosts() == registered_;
  }

 private:
  const device::LedgerDevice& real() const { return *ground_.made.real; }
  void add(const char* tag, std::uint64_t size, Policy policy) {
    regions_.push_back(std::move(arena_->create(tag, units(size), policy)).value());
  }
  void paint(std::size_t i) {
    ground_.words->fill(regions_[i].address, regions_[i].size, contents(i));
  }

  Ground& ground_;
  std::uint64_t registered_;
  std::unique_ptr<Arena> arena_;
  std::vector<std::unique_ptr<HostStorage>> storages_;
  std::vector<RegionInfo> regions_;
  std::vector<State> before_;
};

struct Operation {
  std::string name;
  std::function<Status(World&)> run;
  bool keeps_contents = true;
  std::function<void(World&)> before = {};  ///< without faults
  bool keeps_if_failed = true;
};
/// Why a test was skipped prints its name, not its bytes.
void PrintTo(const Operation& operation, std::ostream* out) {
  *out << operation.name;
}

template <class T>
Status outcome(const Result<T>& result) {
  return result.ok() ? Status() : result.status();
}

std::vector<Operation> tickets() {
  return {
      {"resume_behind",
       [](World& w) {
         NEAP_TRY_ASSIGN(const auto ticket, w.arena().begin_resume(kAway));
         return outcome(ticket->finish());
       }},
      {"backup_behind",
       [](World& w) {
         NEAP_TRY_ASSIGN(const auto ticket, w.arena().begin_backup(kHere));
         return outcome(ticket->finish());
       }},
      {"pause_after_backup",
       [](World& w) {
         NEAP_TRY_ASSIGN(const auto ticket, w.arena().begin_backup(kHere));
         NEAP_TRY(outcome(ticket->finish()));
         PauseOptions options;
         options.unchanged = true;
         return outcome(w.arena().pause(kHere, options));
       }},
  };
}

std::vector<Operation> operations() {
  return {
      {"create",
       [](World& w) { return outcome(w.arena().create("new", w.units(11), Policy::kHost)); }},
      {"create_paused",
       [](World& w) { return outcome(w.arena().create_paused("new", w.units(16))); }},
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
      {.name = "pause_discard_release",
       .run =
           [](World& w) {
             PauseOptions options;
             options.policy = Policy::kDiscard;
             options.release_pages = true;
             return outcome(w.arena().pause(kHere, options));
           },
       .keeps_contents = false,
       .keeps_if_failed = false},
      {"pause_streams",
       [](World& w) {
         PauseOptions options;
         options.fence = Fence::of({device::StreamId::kDefault});
         return outcome(w.arena().pause(kHere, options));
       }},
      {"resume", [](World& w) { return outcome(w.arena().resume(kAway)); }},
      {"exchange", [](World& w) { return outcome(w.arena().exchange(kHere, kAway)); }},
      {"exchange_unchanged",
       [](World& w) {
         PauseOptions options;
         options.unchanged = true;
         return outcome(w.arena().exchange(kHere, kAway, options));
       },
       true,
       [](World& w) {
         EXPECT_TRUE(w.arena().pause(kHere).ok());
         EXPECT_TRUE(w.arena().resume(kHere).ok());
       }},
      {"alias", [](World& w) { return outcome(w.arena().alias("twin", w.id(0))); }},
      {"prepare", [](World& w) { return w.arena().prepare(kHere); }},
      {"shrink",
       [](World& w) { return outcome(w.arena().shrink(w.id(0), w.units(4), w.units(8))); }, false},
      {"grow",
       [](World& w) {
         NEAP_TRY(outcome(w.arena().shrink(w.id(0), w.units(4), w.units(8))));
         return outcome(w.arena().grow(w.id(0), w.units(4), w.units(8)));
       },
       false},
      {"destroy",
       [](World& w) {
         const Status status = w.arena().destroy(w.id(1));
         return status.code() == ErrorCode::kNotFound ? Status() : status;
       }},
  };
}

/// Out of region 0 and in again, ordered with a stream.
Status store_and_fetch(World& w) {
  NEAP_TRY_ASSIGN(auto made, HostStorage::make(w.arena(), "here", w.units(16)));
  const HostStorage* const storage = w.keep(std::move(made));
  NEAP_TRY_ASSIGN(const auto lane, TransferLane::make(w.arena()));
  const Transfer parts[] = {{w.id(0), Bytes(0), storage, w.units(8), w.units(8)},
                            {w.id(0), w.units(8), storage, Bytes(0), w.units(8)}};
  NEAP_TRY(lane->begin_after(device::StreamId::kDefault));
  NEAP_TRY_ASSIGN(const TransferLane::Mark out, lane->to_storage(parts));
  NEAP_TRY(lane->hold_other_direction(out));
  NEAP_TRY_ASSIGN(const TransferLane::Mark in, lane->to_device(parts));
  NEAP_TRY(lane->hold_stream(device::StreamId::kDefault, in, 0));
  NEAP_TRY(lane->take_held_seconds().status());
  NEAP_TRY(lane->wait(out));
  return lane->wait(in);
}

std::vector<Operation> every_operation() {
  std::vector<Operation> all = operations();
  all.push_back({"store_and_fetch", store_and_fetch});
  for (Operation& ticket : tickets()) all.push_back(std::move(ticket));
  return all;
}

class ArenaFault : public testing::TestWithParam<std::tuple<device::DeviceMaker, Operation>> {
 protected:
  ArenaFault() : ground_(std::get<0>(GetParam())), operation_(std::get<1>(GetParam())) {}
  void SetUp() override {
    if (ground_.made.real == nullptr) GTEST_SKIP() << ground_.made.skip_reason;
  }
  /// Where the regions stand after the operation without a fault.
  std::vector<State> states_after(const Operation& operation) {
    World world(ground_);
    if (operation.before) operation.before(world);
    EXPECT_TRUE(operation.run(world).ok());
    std::vector<State> states = world.states();
    EXPECT_TRUE(world.clean_end());
    return states;
  }
  Ground ground_;
  const Operation& operation_;
};

/// Whether an operation may succeed although this call of it failed.
bool may_go_on(const Operation& operation, Call call, ErrorCode code) {
  switch (call) {
    case Call::kMemory:        // pages are taken whatever is free
    case Call::kReserve:       // the addresses that were asked for; others are taken
    case Call::kRegisterHost:  // copies to memory that is not pinned are slower
    case Call::kRelease:       // the page stays in the store, and is released later
    case Call::kQueueDrain:    // every copy has been waited for before
      return true;
    case Call::kCreate:  // without new pages an exchange uses those of the side that leaves
      return code == ErrorCode::kOutOfDeviceMemory && operation.name.starts_with("exchange");
    default:
      return false;
  }
}

TEST_P(ArenaFault, EveryCallFailsOnce) {
  const Operation& operation = operation_;
  const std::vector<State> done = states_after(operation);
  for (const ErrorCode code : {ErrorCode::kDriver, ErrorCode::kOutOfDeviceMemory}) {
    std::uint64_t k = 1;
    for (;; ++k) {
      ASSERT_LT(k, 500u);
      World world(ground_);
      if (operation.before) operation.before(world);
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
      EXPECT_TRUE(!status.ok() || may_go_on(operation, *world.device().failed_call(), code))
          << "the failure was swallowed";
      world.device().arm({});
      EXPECT_EQ(world.states(), status.ok() ? done : world.before());
      if (status.ok() ? operation.keeps_contents : operation.keeps_if_failed) {
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
  const Operation& operation = operation_;
  for (std::uint64_t k = 1;; ++k) {
    ASSERT_LT(k, 500u);
    World world(ground_);
    if (operation.before) operation.before(world);
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

INSTANTIATE_TEST_SUITE_P(
    Every, ArenaFault,
    testing::Combine(testing::Values(with_faults(device::host_maker("", 64_KiB), "Host"),
                                     with_faults(device::cuda_maker(), "Cuda")),
                     testing::ValuesIn(every_operation())),
    [](const auto& p) { return std::get<0>(p.param).name + "_" + std::get<1>(p.param).name; });

}  // namespace
}  // namespace neap::arena
