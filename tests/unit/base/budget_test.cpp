#include "base/budget.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

namespace neap {
namespace {

struct Spent {
  std::string what;
};

void fail(std::string_view what) {
  throw Spent{std::string(what)};
}

constexpr ReadLimits kLimits{.what = "a test",
                             .memory = {1000, 10},
                             .steps = {10, 1},
                             .seconds = {0.005},
                             .advice = "try again"};

template <class Work>
std::string spent_by(std::uint64_t read, const Work& work) {
  Budget budget(kLimits, read, fail);
  try {
    work(budget);
  } catch (const Spent& spent) {
    return spent.what;
  }
  return "";
}

TEST(Budget, BoundsStepsBytesAndSecondsAndSaysWhich) {
  EXPECT_EQ(spent_by(0, [](Budget& budget) { budget.spend(10); }), "");
  EXPECT_EQ(spent_by(0, [](Budget& budget) { budget.spend(11); }),
            "takes over the limit of 10 steps for a test; try again");
  EXPECT_EQ(spent_by(0, [](Budget& budget) { budget.take(1001); }),
            "needs memory over the limit of 1000 B for a test; try again");
  EXPECT_EQ(spent_by(0,
                     [](Budget& budget) {
                       while (true) budget.tick();
                     }),
            "takes over the limit of 0.005 s of processor time for a test; try again");
}

TEST(Budget, AllowancesGrowWithWhatIsRead) {
  EXPECT_EQ(spent_by(10, [](Budget& budget) { budget.spend(20); }), "");
  EXPECT_EQ(spent_by(10, [](Budget& budget) { budget.take(1100); }), "");
  EXPECT_EQ(spent_by(10, [](Budget& budget) { budget.take(1101); }),
            "needs memory over the limit of 1.07 KiB for a test; try again");
}

TEST(Budget, ContainersGiveBackWhatTheyTook) {
  const ReadLimits limits{.memory = {1000}, .steps = {1000}};
  Budget budget(limits, 0, fail);
  for (int i = 0; i < 10; ++i) {
    std::vector<char, Counted<char>> text(900, 'a', budget);
    EXPECT_THROW(text.reserve(2000), Spent);
    EXPECT_EQ(text.size(), 900U);
  }
}

TEST(Budget, TimeCountsFromARestart) {
  const ReadLimits limits{.memory = {1}, .steps = {1}, .seconds = {0.05}};
  Budget budget(limits, 0, fail);
  for (int round = 0; round < 4; ++round) {
    budget.restart_clock();
    const std::clock_t begin = std::clock();
    while (std::clock() - begin < CLOCKS_PER_SEC / 50) budget.tick();
  }
}

}  // namespace
}  // namespace neap
