// A plan for more memory is not slower than one for less, by more than offloading has to gain.
#include <gtest/gtest.h>

#include <cmath>

#include "golden/plan/jobs.h"

namespace neap::plan {
namespace {

struct Sweep {
  const char* config;
  std::vector<std::string> overrides;
};

// Capacities from the minimum to what the job takes where memory is free.
std::vector<Bytes> capacities_of(const spec::Job& job, const Target& target) {
  constexpr int kSteps = 11;
  const auto least = static_cast<double>(least_capacity(job, target)->count());
  Target free = target;
  free.capacity = Bytes();
  const auto most = static_cast<double>(make_plan(job, free)->peak.count());
  std::vector<Bytes> out;
  for (int step = 0; step <= kSteps; ++step)
    out.emplace_back(
        static_cast<std::uint64_t>(std::ceil(least * std::pow(most / least, 1.0 * step / kSteps))));
  return out;
}

TEST(GoldenPlans, MoreMemoryIsNotSlower) {
  const std::vector<Sweep> sweeps = {
      // Blocks on the host leave more room for what is not recomputed.
      {"qwen7b_sft.toml",
       with_auto({"actor_rollout_ref.model.lora_rank=32", "data.max_prompt_length=16384",
                  "data.max_response_length=16384", "data.train_batch_size=8",
                  "data.micro_batch_size_per_gpu=1"})},
      // A shard on the host leaves more room for larger groups of micro-batches.
      {"qwen7b_sft.toml",
       {"trainer.n_gpus_per_node=8", "parallel.zero_stage=3", "data.micro_batch_size_per_gpu=1"}},
      {"opt_ppo.toml", {}},
      {"qwen15_sft.toml", with_auto()},
  };
  for (const Sweep& sweep : sweeps) {
    spec::Job job;
    ASSERT_TRUE(spec::Job::load(kFolder / sweep.config, sweep.overrides, job).ok());
    Target target = target_of(job);
    double before = std::numeric_limits<double>::infinity();
    for (const Bytes capacity : capacities_of(job, target)) {
      target.capacity = capacity;
      const Result<MemoryPlan> plan = make_plan(job, target);
      ASSERT_TRUE(plan.ok()) << sweep.config << plan.status().message();
      EXPECT_LE(plan->seconds(), before * 1.0051) << sweep.config << " " << capacity.count();
      before = std::min(before, plan->seconds());
    }
  }
}

}  // namespace
}  // namespace neap::plan
