#include "base/budget.h"

#include <gtest/gtest.h>

#include <ctime>
#include <vector>

namespace neap {
namespace {

void fail(Budget::Spent spent, const Budget::Limits&) {
  throw spent;
}

template <class Work>
Budget::Spent spent_by(const Budget::Limits& limits, const Work& work) {
  Budget budget(limits, fail);
  try {
    work(budget);
  } catch (const Budget::Spent spent) {
    return spent;
  }
  ADD_FAILURE() << "the work ended";
  return {};
}

TEST(Budget, BoundsStepsBytesAndSeconds) {
  EXPECT_EQ(spent_by({10, 1000}, [](Budget& budget) { budget.spend(11); }), Budget::Spent::kSteps);
  EXPECT_EQ(spent_by({10, 1000}, [](Budget& budget) { budget.take(1001); }), Budget::Spent::kBytes);
  EXPECT_EQ(spent_by({10, 1000, 0.005},
                     [](Budget& budget) {
                       while (true) budget.tick();
                     }),
            Budget::Spent::kSeconds);
}

TEST(Budget, ContainersGiveBackWhatTheyTook) {
  Budget budget({1000, 1000}, fail);
  for (int i = 0; i < 10; ++i) {
    std::vector<char, Counted<char>> text(900, 'a', budget);
    EXPECT_THROW(text.reserve(2000), Budget::Spent);
    EXPECT_EQ(text.size(), 900U);
  }
}

TEST(Budget, TimeCountsFromARestart) {
  Budget budget({1, 1, 0.05}, fail);
  for (int round = 0; round < 4; ++round) {
    budget.restart_clock();
    const std::clock_t begin = std::clock();
    while (std::clock() - begin < CLOCKS_PER_SEC / 50) budget.tick();
  }
}

}  // namespace
}  // namespace neap
