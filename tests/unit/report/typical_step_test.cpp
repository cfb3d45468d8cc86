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

std::uint64_t length_of(const std::optional<StepSpan>& step) {
  return step ? step->end_ns - step->begin_ns : 0;
}

// A step of PPO: two models of which one is updated four times.
void add_step(Trace& trace, std::uint64_t generation) {
  trace.add("generate", generation).add("values", 10);
  for (int i = 0; i < 4; ++i) trace.add("backward_critic", 10).add("update_critic", 1);
  trace.add("train_actor", 20);
}

TEST(TypicalStep, IsWholeWherePhasesRunSeveralTimesInIt) {
  Trace trace;
  trace.add("generate", 40);  // validation: in the first step
  for (const std::uint64_t length : {70U, 50U, 60U, 61U, 62U, 90U}) add_step(trace, length);
  const auto step = typical_step(trace.phases(), plan_of({"generate", "values", "backward_critic",
                                                          "update_critic", "train_actor"}));
  EXPECT_EQ(length_of(step), 61U + 10 + 44 + 20);
}

// Dynamic sampling generates until enough responses differ in their scores.
TEST(TypicalStep, HasAllRoundsOfGeneration) {
  Trace trace;
  for (const int rounds : {3, 1, 2, 3, 4, 2}) {
    for (int i = 0; i < rounds; ++i) trace.add("generate", 50).add("rewards", 10);
    for (int i = 0; i < 2; ++i) trace.add("backward_actor", 20).add("update_actor", 5);
  }
  PlanSummary plan = plan_of({"generate", "rewards", "backward_actor", "update_actor"});
  plan.phases[2].times = plan.phases[3].times = 2;
  EXPECT_EQ(length_of(typical_step(trace.phases(), plan)), 3U * 60 + 2 * 25);
}

// A run from kept experience has no generation phase.
TEST(TypicalStep, HasAllMiniBatches) {
  Trace trace;
  for (const std::uint64_t length : {20U, 30U, 25U, 26U, 27U, 40U})
    for (int i = 0; i < 2; ++i) trace.add("backward_actor", length).add("update_actor", 5);
  PlanSummary plan = plan_of({"backward_actor", "update_actor"});
  plan.phases[0].times = plan.phases[1].times = 2;
  EXPECT_EQ(length_of(typical_step(trace.phases(), plan)), 2U * (26 + 5));
}

TEST(TypicalStep, IsOneWhereModelsAreUpdatedInTurn) {
  Trace trace;
  for (int step = 0; step < 6; ++step)
    for (const std::string model : {"critic", "actor"})
      for (int i = 0; i < 4; ++i) trace.add("backward_" + model, 10).add("update_" + model, 1);
  PlanSummary plan =
      plan_of({"backward_critic", "update_critic", "backward_actor", "update_actor"});
  for (PlanSummary::Phase& phase : plan.phases) phase.times = 4;
  EXPECT_EQ(length_of(typical_step(trace.phases(), plan)), 8U * 11);
}

TEST(TypicalStep, BeginsWithTraining) {
  Trace trace;
  for (int step = 0; step < 20; ++step) {
    if (step % 2 == 0) trace.add("validate", 100);
    trace.add("train", 30);
  }
  PlanSummary plan = plan_of({"train", "validate", "ref_logp"});
  plan.phases[1].share = 0.5;
  plan.phases[2].times = 0;
  const std::uint64_t length = length_of(typical_step(trace.phases(), plan));
  EXPECT_TRUE(length == 30 || length == 130) << length;
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
