// Simulated steps of a model of 8 blocks, and what they take longest for.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "plan/rates/gpu_catalog.h"
#include "plan/search/simulation.h"

namespace neap::plan {

inline constexpr auto kData = static_cast<std::size_t>(spec::Axis::kData);
inline constexpr auto kPipe = static_cast<std::size_t>(spec::Axis::kPipe);
inline constexpr auto kTensor = static_cast<std::size_t>(spec::Axis::kTensor);

// A model of 8 blocks; its vocabulary is small, so that stages of as many blocks are about equal.
class Simulations : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("neap_simulated_model-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json")
        << R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 1024, "intermediate_size": 4096,
 "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
 "tie_word_embeddings": false})";
  }

  [[nodiscard]] spec::Job job(std::int64_t rows, const std::vector<std::string>& keys) const {
    std::vector<std::string> all = {"task=sft",
                                    "actor_rollout_ref.model.path=" + folder_.string(),
                                    "actor_rollout_ref.model.activation_checkpointing=none",
                                    "data.use_dynamic_bsz=false",
                                    "data.train_batch_size=" + std::to_string(rows),
                                    "data.micro_batch_size_per_gpu=1",
                                    "data.max_prompt_length=1",
                                    "data.max_response_length=1023"};
    all.insert(all.end(), keys.begin(), keys.end());
    spec::Job out;
    const Status status = spec::Job::load({}, all, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  [[nodiscard]] Simulation run(std::int64_t rows, const std::vector<std::string>& keys) const {
    Result<Simulation> out = simulate(job(rows, keys), gpu_by_name("h100", {})->target);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return *std::move(out);
  }
  [[nodiscard]] static std::vector<std::string> stages(std::int64_t p, std::int64_t chunks = 1) {
    const std::string each = std::to_string(8 / (p * chunks));
    std::string layout = each;
    for (std::int64_t part = 1; part < p * chunks; ++part) layout += "," + each;
    return {"parallel.pipeline_model_parallel_size=" + std::to_string(p),
            "parallel.virtual_pipeline_model_parallel_size=" + std::to_string(chunks),
            "parallel.pipeline_model_parallel_layout=[" + layout + "]",
            "trainer.n_gpus_per_node=" + std::to_string(p)};
  }

  std::filesystem::path folder_;
};

inline double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}
inline double longest_update(const Simulation& s) {
  double out = 0;
  for (const StagePlan& stage : s.plans.stages) {
    const PhasePlan& phase = stage.plan.phases.front();
    const double waits = phase.transfer_seconds + phase.bubble_seconds;
    out = std::max(out, phase.seconds - waits - sum(phase.passes.forward) -
                            sum(phase.passes.backward) - sum(phase.passes.weights) -
                            phase.passes.sums);
  }
  return out;
}
inline double longest_sums(const Simulation& s) {
  double out = 0;
  for (const StagePlan& stage : s.plans.stages)
    out = std::max(out, stage.plan.phases.front().passes.sums);
  return out;
}

}  // namespace neap::plan
