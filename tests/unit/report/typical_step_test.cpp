#include "report/typical_step.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace neap::report {
namespace {

// Phases one after another.
class Trace {
 public:
  Trace& add(const std::string& name, std::uint64_t length) {
    PhaseSpan& phase = phases_.emplace_back();
    phase.name = name;
    phase.begin_ns = now_;
    phase.end_ns = now_ + length;
    now_ += length;
    return *this;
  }
  [[nodiscard]] std::uint64_t now() const { return now_; }
  [[nodiscard]] const std::vector<PhaseSpan>& phases() const { return phases_; }

 private:
  std::vector<PhaseSpan> phases_;
  std::uint64_t now_ = 0;
};

PlanSummary plan_of(const std::vector<std::string>& names) {
  PlanSummary plan;
  for (const std::string& name : names) plan.phases.push_back({name, {}, {}, {}});
  return plan;
}

// A step of PPO: two models of which one is updated four times.
void add_step(Trace& trace, std::uint64_t generation) {
  trace.add("generate", generation).add("values", 10);
  for (int i = 0; i < 4; ++i) trace.add("backward_critic", 10).add("update_critic", 1);
  trace.add("train_actor", 20);
}

TEST(TypicalStep, IsWholeWherePhasesRunSeveralTimesInIt) {
  Trace trace;
  trace.add("generate", 40);  // validation
  for (const std::uint64_t length : {70U, 50U, 60U, 61U, 62U, 90U}) add_step(trace, length);
  const auto step = typical_step(trace.phases(), plan_of({"generate", "values", "backward_critic",
                                                          "update_critic", "train_actor"}));
  ASSERT_TRUE(step);
  EXPECT_EQ(step->end_ns - step->begin_ns, 61U + 10 + 44 + 20);
}

TEST(TypicalStep, BeginsWithTraining) {
  Trace trace;
  for (int step = 0; step < 20; ++step) {
    if (step % 2 == 0) trace.add("validate", 100);
    trace.add("train", 30);
  }
  const auto step = typical_step(trace.phases(), plan_of({"train", "validate"}));
  ASSERT_TRUE(step);
  EXPECT_TRUE(step->end_ns - step->begin_ns == 30 || step->end_ns - step->begin_ns == 130);
}

TEST(TypicalStep, NeedsAPlanAndSeveralSteps) {
  Trace trace;
  for (int step = 0; step < 4; ++step) trace.add("train", 30);
  EXPECT_FALSE(typical_step(trace.phases(), std::nullopt));
  EXPECT_FALSE(typical_step(trace.phases(), plan_of({"train"})));
  EXPECT_FALSE(typical_step(trace.phases(), plan_of({"other"})));
  trace.add("train", 30);
  EXPECT_TRUE(typical_step(trace.phases(), plan_of({"other", "train"})));
}

}  // namespace
}  // namespace neap::report
