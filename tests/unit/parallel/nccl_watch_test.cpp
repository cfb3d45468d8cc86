#include "parallel/nccl_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace neap::parallel {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class Place final : public Rendezvous {
 public:
  void share(std::vector<char>&) override {}
  void report_failure(int) noexcept override { failed = true; }
  std::optional<std::string> failure() override {
    return failed ? std::optional<std::string>("Rank 1 failed (exit code 3)") : std::nullopt;
  }
  void show_life() noexcept override { ++signs; }
  std::int64_t signs_of_life() noexcept override { return signs; }

  std::atomic<bool> failed = false;
  std::atomic<std::int64_t> signs = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A call that takes until the watch gives up. `each`: what happens ten times a second.
template <class Each>
Status give_up(Place& place, double timeout_seconds, const Each& each) {
  std::atomic<int> aborted = 0;
  NcclWatch watch(place, 0, timeout_seconds, [&] { ++aborted; });
  watch.begin("all_reduce");
  while (aborted == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    each();
  }
  watch.end();
  EXPECT_TRUE(watch.gave_up());
  EXPECT_EQ(aborted, 1);
  return watch.reason();
}

TEST(NcclWatch, GivesUpWhenNobodyComesInTime) {
  Place place;
  const Status reason = give_up(place, 1.5, [] {});
  EXPECT_EQ(reason.code(), ErrorCode::kTimeout);
  EXPECT_THAT(reason.message(), HasSubstr("in all_reduce for the other ranks"));
}

TEST(NcclWatch, WaitsOnWhileARankShowsThatItWorks) {
  Place place;
  const auto start = Clock::now();
  const Status reason = give_up(place, 1.5, [&] {
    if (seconds_since(start) < 4) place.show_life();
  });
  EXPECT_EQ(reason.code(), ErrorCode::kTimeout);
  EXPECT_GT(seconds_since(start), 5);
}

TEST(NcclWatch, GivesUpAtOnceWhereARankFails) {
  Place place;
  const auto start = Clock::now();
  place.failed = true;
  const Status reason = give_up(place, 60, [&] { place.show_life(); });
  EXPECT_EQ(reason.code(), ErrorCode::kIo);
  EXPECT_THAT(reason.message(), HasSubstr("Rank 1 failed (exit code 3); rank 0 ends too"));
  EXPECT_LT(seconds_since(start), 20);
}

}  // namespace
}  // namespace neap::parallel
