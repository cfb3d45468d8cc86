// Optimizer states that rest on disk come to slots and go back, on devices and disks that fail.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bridge/streamed_states.h"
#include "device/fault/fault_device.h"
#include "step/units/update_parts.h"
#include "unit/arena/disk_system.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

using testing::the_system;

constexpr std::uint64_t kPart = 1000;  // words, so that most parts begin and end within pages

// Units in parts, with states on disk and gradients, which are only fetched, on the host.
class DiskStates : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "neap-states-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    the_system.reset(folder_);
    real_ = host_device(64_MiB);
    fault_ = device::make_fault_device(*real_);
    arena::Options options;
    options.touch_threads = 1;
    options.disk_folder = folder_;
    arena_ = value_or_throw(arena::Arena::make(*fault_, options));
    const Bytes slot = bytes_of(2 * kPart);
    region_ =
        value_or_throw(arena_->create("slots", slot * step::kUpdateSlots, arena::Policy::kDiscard));
    std::vector<SlotPart> slots;
    for (std::size_t i = 0; i < step::kUpdateSlots; ++i)
      slots.push_back({format("slot.{}", i), region_.id, slot * i});
    std::vector<Bytes> units;
    for (std::size_t u = 0; u < kUnits.size(); ++u) {
      units.push_back(bytes_of(kUnits[u]));
      gradients_.push_back(
          value_or_throw(arena::HostStorage::make(*arena_, "slots", units.back())));
      for (std::uint64_t first = 0; first < kUnits[u]; first += kPart)
        parts_.push_back({u, first, std::min(kPart, kUnits[u] - first)});
    }
    states_.emplace(*arena_, device::StreamId::kDefault, "states", std::move(slots), units,
                    round_up(bytes_of(kPart), step::kWindowPage) + step::kWindowPage);
    load();
  }
  void TearDown() override {
    fault_->arm({});
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
    states_.reset();
    gradients_.clear();
    arena_.reset();
    ::rmdir(folder_.c_str());
  }
  static std::uint64_t* words_of(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }
  [[nodiscard]] std::uint64_t* state(std::size_t unit) const {
    return words_of(states_->states(unit).data());
  }
  /// As a checkpoint does.
  void load() {
    for (std::size_t u = 0; u < kUnits.size(); ++u) {
      for (std::uint64_t w = 0; w < kUnits[u]; ++w) {
        state(u)[w] = value(u, w, 0);
        words_of(gradients_[u]->data())[w] = value(u, w, 7);
      }
    }
  }
  static std::uint64_t value(std::size_t unit, std::uint64_t word, std::uint64_t round) {
    return (unit << 40) + (word << 8) + round;
  }
  /// Adds one to every state.
  void step(std::uint64_t round) {
    const auto copies = [&](std::size_t i) {
      const Part& part = parts_[i];
      const Bytes first = bytes_of(part.first), size = bytes_of(part.count);
      const Bytes in_page = first - round_down(first, step::kWindowPage);
      return std::vector<StreamedStates::Copy>{
          {{gradients_[part.unit].get()},
           step::StreamedKind::kGradients,
           first,
           bytes_of(kPart),
           size,
           true,
           false},
          {states_->states(part.unit), step::StreamedKind::kStates, first, Bytes(), size, true,
           true, in_page}};
    };
    visited_ = 0;
    states_->for_each(parts_.size(), copies, [&](std::size_t i, std::size_t slot) {
      ASSERT_EQ(i, visited_++);
      const Part& part = parts_[i];
      // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
      auto* const words = reinterpret_cast<std::uint64_t*>(region_.address) + slot * 2 * kPart;
      for (std::uint64_t w = 0; w < part.count; ++w) {
        ASSERT_EQ(words[w], value(part.unit, part.first + w, round)) << i << " " << w;
        ASSERT_EQ(words[kPart + w], value(part.unit, part.first + w, 7));
        ++words[w];
      }
    });
  }
  void expect_stepped(std::uint64_t rounds) const {
    for (std::size_t u = 0; u < kUnits.size(); ++u)
      for (std::uint64_t w = 0; w < kUnits[u]; ++w)
        ASSERT_EQ(state(u)[w], value(u, w, rounds)) << u << " " << w;
  }
  /// The k-th call of `failing` fails, for every k: one error each time, and afterwards all is well.
  template <class Arm, class Fired>
  void expect_errors(const Arm& arm, const Fired& fired, ErrorCode code) {
    int failed = 0;
    for (std::uint64_t k = 1;; ++k) {
      SCOPED_TRACE(format("call {}", k));
      load();
      arm(k);
      bool threw = false;
      try {
        step(0);
      } catch (const Error& e) {
        EXPECT_EQ(e.status().code(), code);
        threw = true;
      }
      const bool met = fired();
      arm(0);
      if (!met) break;
      failed += threw;
      EXPECT_TRUE(threw || visited_ == parts_.size());
      const std::vector<std::string> tags = {"slots"};
      ASSERT_TRUE(arena_->pause(tags).ok());  // nothing is under way
      ASSERT_TRUE(arena_->resume(tags).ok());
      load();
      ASSERT_NO_FATAL_FAILURE(step(0));
      ASSERT_NO_FATAL_FAILURE(expect_stepped(1));
    }
    EXPECT_GT(failed, 10);
  }

  struct Part {
    std::size_t unit;
    std::uint64_t first, count;
  };
  static constexpr std::array<std::uint64_t, 3> kUnits = {7300, 64, 5130};
  std::string folder_;
  std::unique_ptr<device::HostDevice> real_;
  std::unique_ptr<device::FaultDevice> fault_;
  std::unique_ptr<arena::Arena> arena_;
  arena::RegionInfo region_;
  std::vector<std::unique_ptr<arena::HostStorage>> gradients_;
  std::optional<StreamedStates> states_;
  std::vector<Part> parts_;
  std::size_t visited_ = 0;
};

TEST_F(DiskStates, EveryPartIsSteppedAndGoesBack) {
  for (std::uint64_t round = 0; round < 5; ++round) ASSERT_NO_FATAL_FAILURE(step(round));
  expect_stepped(5);
  const Bytes all = bytes_of(7300 + 64 + 5130);
  const LinkUse use = value_or_throw(states_->take_use())[index_of(step::StreamedKind::kStates)];
  EXPECT_EQ(use.to_device, all * 5);
  EXPECT_EQ(use.to_host, all * 5);
  EXPECT_EQ(use.disk_read, all * 5);
  EXPECT_EQ(use.disk_written, all * 5);
  EXPECT_GT(use.disk_seconds, 0);
  EXPECT_TRUE(value_or_throw(states_->take_use())[index_of(step::StreamedKind::kStates)]
                  .disk_read.is_zero());
}

TEST_F(DiskStates, LoadingAndUpdatesTakeTurns) {
  for (int turn = 0; turn < 3; ++turn) {
    load();
    ASSERT_NO_FATAL_FAILURE(step(0));
    ASSERT_NO_FATAL_FAILURE(expect_stepped(1));
    ASSERT_NO_FATAL_FAILURE(step(1));
    ASSERT_NO_FATAL_FAILURE(expect_stepped(2));
  }
}

TEST_F(DiskStates, EveryReadMayFail) {
  expect_errors([](std::uint64_t k) { the_system.failing_read = static_cast<std::int64_t>(k); },
                [] { return the_system.failing_read <= 0; }, ErrorCode::kIo);
}

TEST_F(DiskStates, EveryWriteMayFail) {
  expect_errors([](std::uint64_t k) { the_system.failing_write = static_cast<std::int64_t>(k); },
                [] { return the_system.failing_write <= 0; }, ErrorCode::kIo);
}

TEST_F(DiskStates, EveryDeviceCallMayFail) {
  expect_errors(
      [&](std::uint64_t k) {
        fault_->arm(k > 0 ? device::FaultPlan{k, std::nullopt, ErrorCode::kDriver, false}
                          : device::FaultPlan{});
      },
      [&] { return fault_->fired(); }, ErrorCode::kDriver);
}

TEST_F(DiskStates, AStepThatThrowsLeavesNothingUnderWay) {
  const auto copies = [&](std::size_t) {
    return std::vector<StreamedStates::Copy>{
        {states_->states(1), step::StreamedKind::kStates, Bytes(), Bytes(), bytes_of(64)}};
  };
  EXPECT_THROW(states_->for_each(5, copies,
                                 [](std::size_t i, std::size_t) {
                                   if (i == 2) throw std::runtime_error("stop");
                                 }),
               std::runtime_error);
  const std::vector<std::string> tags = {"slots"};
  EXPECT_TRUE(arena_->pause(tags).ok());
}

}  // namespace
}  // namespace neap::bridge
