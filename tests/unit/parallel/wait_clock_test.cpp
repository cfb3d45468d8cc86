#include "parallel/wait_clock.h"

#include <gtest/gtest.h>

namespace neap::parallel {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(WaitClock, LeavesOutTheTimeInWhichTheProcessWasStopped) {
  auto now = WaitClock::Clock::now();
  WaitClock clock(now);
  for (int i = 1; i <= 40; ++i)
    EXPECT_NEAR(clock.look(now += milliseconds(50)).count(), 0.05 * i, 1e-6);
  EXPECT_LE(clock.look(now += hours(1)).count(), 4.01);
  EXPECT_LE(clock.look(now += milliseconds(50)).count(), 4.1) << "and counts on";
  EXPECT_GE(clock.look(now += milliseconds(1000)).count(), 3);
  clock.restart(now += hours(1));
  EXPECT_NEAR(clock.look(now += milliseconds(50)).count(), 0.05, 1e-6);
}

}  // namespace
}  // namespace neap::parallel
