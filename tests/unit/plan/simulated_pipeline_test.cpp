// Simulated steps of pipelines: bubbles against the textbook's.
#include "plan/search/simulation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/results/network.h"
#include "simulations.h"

namespace neap::plan {
namespace {

TEST_F(Simulations, OneMicroBatchGoesThroughAllStagesAndBack) {
  for (const auto& [p, chunks] : {std::pair{2, 1}, {4, 1}, {2, 4}, {4, 2}}) {
    const Simulation s = run(1, stages(p, chunks));
    double by_hand = 0;
    for (std::size_t i = 0; i < s.stages.size(); ++i)
      by_hand += s.plans.forward[i] + s.plans.backward[i];
    const Network network = network_of(job(1, stages(p)), default_network(true));
    // bfloat16 hidden states of 1024 tokens, there and back over each boundary.
    by_hand += 2 * static_cast<double>(p * chunks - 1) *
               transfer_seconds(network, s.mesh, 0, 1024 * 1024 * 2);
    const double last = by_hand + longest_update(s);
    EXPECT_GE(s.seconds, last * (1 - 1e-9));
    EXPECT_LE(s.seconds, (last + longest_sums(s)) * (1 + 1e-9));
    EXPECT_EQ(s.micro_batches, 1);
  }
}

TEST_F(Simulations, TheBubbleOfEqualStagesIsTheTextbooks) {
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {4, 16, 64}) {
      const Simulation s = run(m, stages(p));
      // The slowest stage is never idle but in the bubble and in transfers.
      double slowest = 0;
      for (std::size_t i = 0; i < s.stages.size(); ++i)
        slowest = std::max(slowest, s.plans.forward[i] + s.plans.backward[i]);
      const double rest = longest_update(s) + longest_sums(s);
      const double ideal = slowest * static_cast<double>(m + p - 1);
      double transfers = 0;
      for (const SimulatedStage& stage : s.stages)
        transfers = std::max(transfers, stage.step.axes[kPipe]);
      EXPECT_LE(s.seconds, (ideal + rest + 2 * transfers) * 1.001) << p << " " << m;
      // The head makes the last stage a little slower than the others.
      EXPECT_GE(s.seconds, 0.93 * ideal) << p << " " << m;
      EXPECT_NEAR(s.plans.bubble(), static_cast<double>(p - 1) / static_cast<double>(m), 1e-12);
    }
  }
}

// F, B and W by hand: stages of as many blocks wait (p - 1) (F + B - W).
TEST_F(Simulations, ABackwardInTwoPartsFillsTheBubble) {
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {8, 32}) {
      std::vector<std::string> keys = stages(p);
      // Launches take longer than these kernels. With fewer, both take about as long, and a pass is counted by the
      // slower one of all so far.
      keys.emplace_back("device.kernels=libtorch");
      const Simulation one = run(m, keys);
      keys.emplace_back("parallel.pipeline_parallel_schedule=zero_bubble");
      const Simulation s = run(m, keys);
      const std::vector<double> whole = one.plans.backward;
      for (std::size_t i = 0; i < s.stages.size(); ++i) {
        const PassSeconds& passes = s.plans.stages[i].plan.phases.front().passes;
        EXPECT_NEAR(s.plans.forward[i], one.plans.forward[i], 1e-9 * one.plans.forward[i]) << i;
        // The same operations, but that the gradient of the up projection has memory of its own.
        EXPECT_NEAR(s.plans.backward[i], whole[i], 1e-3 * whole[i]) << i;
        EXPECT_EQ(passes.weights.empty(), i == 0) << i;
        // Half of the blocks' products; operations between them, and the head's, are the input's.
        if (i > 0) {
          const bool last = i + 1 == s.stages.size();
          EXPECT_GT(sum(passes.weights), (last ? 0.1 : 0.2) * sum(passes.backward)) << i;
          EXPECT_LT(sum(passes.weights), sum(passes.backward)) << i;
        }
      }
      const double weights =
          sum(s.plans.stages[1].plan.phases.front().passes.weights) / static_cast<double>(m);
      const double saved = one.seconds - s.seconds;
      EXPECT_NEAR(saved, 2 * static_cast<double>(p - 1) * weights, 0.1 * saved) << p << " " << m;
      EXPECT_LT(s.shares.bubble, one.shares.bubble) << p << " " << m;
      EXPECT_NEAR(s.shares.sum(), s.seconds, 1e-9 * s.seconds);
      EXPECT_NEAR(s.plans.bubble(), one.plans.bubble() / 3, 1e-12);
      // The first stage's backward is in one part.
      EXPECT_EQ(s.plans.stages[0].plan.peak, one.plans.stages[0].plan.peak);
      EXPECT_GT(s.plans.stages[1].plan.peak, one.plans.stages[1].plan.peak);
    }
  }
}

// The slowest stage is idle by (p - 1) / (m v), where its chunks are alike.
TEST_F(Simulations, ChunksDivideTheBubble) {
  for (const auto& [p, chunks] : {std::pair{2, 2}, {2, 4}, {4, 2}}) {
    for (const std::int64_t m : {8, 32}) {
      const Simulation one = run(m, stages(p)), s = run(m, stages(p, chunks));
      const auto slowest = [&](const Simulation& of) {
        double out = 0;
        for (std::size_t i = 0; i < of.stages.size(); ++i)
          out = std::max(out, of.plans.forward[i] + of.plans.backward[i]);
        return out;
      };
      // Each chunk copies its tokens and makes its rotations.
      EXPECT_GE(slowest(s), slowest(one));
      EXPECT_LE(slowest(s), 1.1 * slowest(one));
      double transfers = 0;
      for (const SimulatedStage& stage : s.stages)
        transfers = std::max(transfers, stage.step.axes[kPipe]);
      const double rest = longest_update(s) + longest_sums(s);
      const auto ideal =
          slowest(s) * (static_cast<double>(m) + static_cast<double>(p - 1) / chunks);
      EXPECT_LE(s.seconds, (ideal + rest + 2 * transfers) * 1.01) << p << " " << chunks << " " << m;
      EXPECT_GE(s.seconds, 0.93 * ideal) << p << " " << chunks << " " << m;
      // With more micro-batches, stages wait longer for the chunk that has the head.
      if (m == 8) {
        EXPECT_LT(s.shares.bubble, 1.01 * one.shares.bubble) << p << " " << chunks;
      }
      EXPECT_GT(s.shares.axes[kPipe], one.shares.axes[kPipe]);
      EXPECT_NEAR(s.shares.sum(), s.seconds, 1e-9 * s.seconds);
      EXPECT_NEAR(s.plans.bubble(), one.plans.bubble() / chunks, 1e-12);
      // A stage keeps more of its first micro-batches.
      EXPECT_GT(s.plans.stages.front().plan.peak, one.plans.stages.front().plan.peak);
    }
  }
}

TEST_F(Simulations, PlansOfStagesHaveTheSecondsOfTheStep) {
  std::vector<std::string> keys = stages(4);
  // One ends its moves later than the others: parts of an update are phases, and states come and go.
  for (const char* update :
       {"memory.optimizer_offload=none", "memory.optimizer_offload=phase_split"}) {
    keys.emplace_back(update);
    const Simulation s = run(8, keys);
    const Result<StagePlans> plans = plan_stages(job(8, keys), gpu_by_name("h100", {})->target);
    ASSERT_TRUE(plans.ok());
    EXPECT_DOUBLE_EQ(plans->seconds(), s.seconds);
    for (const StagePlan& stage : plans->stages) {
      EXPECT_NEAR(stage.plan.operation_seconds(), s.seconds, 1e-9 * s.seconds);
      EXPECT_GT(stage.plan.stage_wait_seconds(), 0);
      // They compute for a quarter as long, but for the bubble.
      EXPECT_LT(stage.plan.stage_wait_seconds(), 0.6 * s.seconds);
    }
    keys.pop_back();
  }
}

}  // namespace
}  // namespace neap::plan
