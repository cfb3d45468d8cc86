// Jobs whose layers multiply in fp8: what their plans say, and which jobs cannot.
#include "plan/results/kernel_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/rates/gpu_catalog.h"

namespace neap::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

Result<MemoryPlan> plan_of(std::vector<std::string> keys, const std::string& gpu) {
  keys.insert(keys.begin(),
              {"task=sft", "data.use_dynamic_bsz=false",
               "actor_rollout_ref.model.path=" NEAP_SOURCE_DIR "/tests/golden/plan/models/qwen7",
               "actor_rollout_ref.model.activation_checkpointing=selective"});
  spec::Job job;
  const Status status = spec::Job::load({}, keys, job);
  EXPECT_TRUE(status.ok()) << status.message();
  Target target;
  if (!gpu.empty()) target = gpu_by_name(gpu, {})->target;
  target.capacity = {};
  return make_plan(job, target);
}
const std::string kFp8 = "device.linear_dtype=fp8";
const std::vector<std::string> kAdapted{"actor_rollout_ref.model.lora_rank=16"};

MemoryPlan planned(std::vector<std::string> keys, const std::string& gpu) {
  Result<MemoryPlan> plan = plan_of(std::move(keys), gpu);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}
void refused(std::vector<std::string> keys, const std::string& gpu, const std::string& reason) {
  keys.push_back(kFp8);
  const Result<MemoryPlan> plan = plan_of(std::move(keys), gpu);
  ASSERT_FALSE(plan.ok()) << reason;
  EXPECT_THAT(plan.status().message(), HasSubstr("device.linear_dtype is \"fp8\", but " + reason));
}

TEST(LinearDtype, PlansOfFp8AreFasterAndSaySo) {
  const MemoryPlan plain = planned({}, "h200"), fp8 = planned({kFp8}, "h200");
  EXPECT_LT(fp8.seconds(), 0.85 * plain.seconds());
  EXPECT_TRUE(fp8.to_json()["fp8"].get<bool>());
  EXPECT_FALSE(plain.to_json()["fp8"].get<bool>());
  EXPECT_THAT(fp8.to_text(), HasSubstr("fp8 (e4m3, gradients e5m2) in training and scoring"));
  EXPECT_THAT(plain.to_text(), Not(HasSubstr("fp8")));
  EXPECT_LT(planned({kFp8, kAdapted[0]}, "h200").seconds(),
            0.9 * planned(kAdapted, "h200").seconds());
}

TEST(LinearDtype, RefusesWhatFp8RulesOut) {
  refused({"device.dtype=float32"}, "h200", "the job computes in float32");
  refused({}, "", "the job computes in float32");
  EXPECT_TRUE(plan_of({kFp8, "device.dtype=bfloat16"}, "").ok());
  refused({}, "a100", "the GPU has compute capability 8.0, and matrix products of fp8 need 8.9");
  EXPECT_TRUE(plan_of({kFp8}, "l4").ok());
  refused({"device.kernels=libtorch"}, "h200", "device.kernels is \"libtorch\"");
}

TEST(LinearDtype, RefusesJobsWithoutAMatrixThatGpusMultiply) {
  spec::Job job;
  job.device.linear_dtype = "fp8";
  JobModels models;
  ModelRole& role = models.actor.emplace();
  role.shape.hidden_size = role.shape.embedding_dim = 72;
  role.shape.intermediate_size = 72;
  role.shape.num_hidden_layers = 1;
  role.shape.num_attention_heads = role.shape.num_key_value_heads = 2;
  role.shape.head_dim = 32;
  role.shape.vocab_size = 41;
  const Target card = gpu_by_name("h200", {})->target;
  job.device.dtype = "bfloat16";
  for (const Target& target : {card, Target()})
    EXPECT_THAT(check_linear_dtype(job, target, models).message(),
                HasSubstr("no matrix of a layer has sizes on a rank that are multiples of 16"));
  // The matrices of attention are multiplied in fp8. A size of the MLP is no multiple of 16.
  role.shape.hidden_size = role.shape.embedding_dim = 64;
  for (const Target& target : {card, Target()})
    EXPECT_TRUE(check_linear_dtype(job, target, models).ok());
}

}  // namespace
}  // namespace neap::plan
