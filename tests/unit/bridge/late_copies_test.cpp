// Windows are used again only once copies out of them have ended, on a device that copies as late as it may.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bridge/streamed_states.h"
#include "step/units/update_parts.h"
#include "unit/bridge/late_device.h"
#include "unit/bridge/slots.h"

namespace neap::bridge {
namespace {

// Parts of 1000 words of one unit on disk, so that most begin and end within pages.
class LateStates : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPart = 1000, kParts = 30;
  void SetUp() override {
    std::string name = ::testing::TempDir() + "neap-late-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    real_ = host_device(64_MiB);
    late_ = std::make_unique<LateDevice>(*real_);
    arena::Options options;
    options.touch_threads = 1;
    options.disk_folder = folder_;
    arena_ = value_or_throw(arena::Arena::make(*late_, options));
    const Bytes slot = bytes_of(kPart);
    region_ =
        value_or_throw(arena_->create("slots", slot * step::kUpdateSlots, arena::Policy::kDiscard));
    std::vector<SlotPart> slots;
    for (std::size_t i = 0; i < step::kUpdateSlots; ++i)
      slots.push_back({format("slot.{}", i), region_.id, slot * i});
    states_ = std::make_unique<StreamedStates>(
        *arena_, device::StreamId::kDefault, "states", std::move(slots),
        std::vector<Bytes>{slot * kParts}, round_up(slot, step::kWindowPage) + step::kWindowPage);
    for (std::uint64_t w = 0; w < kPart * kParts; ++w) state()[w] = w;
  }
  void TearDown() override {
    states_.reset();
    arena_.reset();
    ::rmdir(folder_.c_str());
  }
  [[nodiscard]] std::uint64_t* state() const {
    return reinterpret_cast<std::uint64_t*>(states_->states(0).data());
  }
  /// Adds 1 000 000 to each word on the device. How many words were not there.
  std::uint64_t step(const std::function<bool(std::size_t)>& is_stored) {
    std::uint64_t wrong = 0, visited = 0;
    const auto copies = [&](std::size_t i) {
      const Bytes first = bytes_of(i * kPart);
      return std::vector<StreamedStates::Copy>{{states_->states(0), step::StreamedKind::kStates,
                                                first, Bytes(), bytes_of(kPart), true, is_stored(i),
                                                first - round_down(first, step::kWindowPage)}};
    };
    states_->for_each(kParts, copies, [&](std::size_t i, std::size_t slot) {
      late_->submit([&, i, slot] {
        ++visited;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): regions are known by address
        auto* const words = reinterpret_cast<std::uint64_t*>(region_.address) + slot * kPart;
        for (std::uint64_t w = 0; w < kPart; ++w) {
          wrong += words[w] != i * kPart + w;
          words[w] += 1'000'000;
        }
      });
    });
    EXPECT_EQ(visited, kParts);
    return wrong;
  }
  void expect_stepped(const std::function<bool(std::size_t)>& is_stored) const {
    for (std::uint64_t w = 0; w < kPart * kParts; ++w)
      ASSERT_EQ(state()[w], w + (is_stored(w / kPart) ? 1'000'000 : 0)) << w;
  }

  std::string folder_;
  std::unique_ptr<device::HostDevice> real_;
  std::unique_ptr<LateDevice> late_;
  std::unique_ptr<arena::Arena> arena_;
  arena::RegionInfo region_;
  std::unique_ptr<StreamedStates> states_;
};

TEST_F(LateStates, PartsThatDoNotComeBackAreReadWhole) {
  const auto none = [](std::size_t) { return false; };
  EXPECT_EQ(step(none), 0U);
  expect_stepped(none);
}

TEST_F(LateStates, PartsThatComeBackAndOthersTakeTurns) {
  for (const std::size_t every : {1u, 2u, 5u, 9u}) {
    SCOPED_TRACE(format("every {}", every));
    for (std::uint64_t w = 0; w < kPart * kParts; ++w) state()[w] = w;
    const auto some = [&](std::size_t i) { return i % every == 0; };
    EXPECT_EQ(step(some), 0U);
    ASSERT_NO_FATAL_FAILURE(expect_stepped(some));
  }
}

}  // namespace
}  // namespace neap::bridge
