// Two jobs of one process, with other types, threads, kernels and pools: one after the other and phase by phase in turns,
// each computes what it computes alone, and libtorch keeps the settings that the process had.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "bridge/no_autograd.h"
#include "rlhf/run/run.h"
#include "rlhf/trainer/trainer.h"
#include "stepped_job.h"

namespace neap::rlhf {
namespace {

namespace fs = std::filesystem;

class TwoJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_);
    at::set_num_threads(3);  // as no job has
    before_.emplace();
    allocator_ = c10::GetCPUAllocator();
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] fs::path folder() { return root_ / std::to_string(folders_++); }
  [[nodiscard]] Results alone(const JobSetup& setup) {
    SteppedJob job(setup, folder(), [] {});
    while (!job.done()) job.step();
    return job.results();
  }
  [[nodiscard]] Files run_whole(const JobSetup& setup) {
    const fs::path output = folder();
    const spec::Job job = load_job(setup, output);
    EXPECT_EQ(run(job, launch_of(setup, job)), Outcome::kDone);
    return tensors_in(output / ("global_step_" + std::to_string(job.trainer.total_training_steps)));
  }
  void expect_settings_of_the_process() const {
    EXPECT_TRUE(Settings() == *before_);
    EXPECT_EQ(c10::GetCPUAllocator(), allocator_);
  }
  static void expect_same(const Results& a, const Results& b) {
    EXPECT_EQ(a.metrics, b.metrics);
    EXPECT_EQ(a.peak, b.peak);
    EXPECT_TRUE(a.files == b.files);
    ASSERT_EQ(a.requests.size(), b.requests.size());
    for (std::size_t i = 0; i < a.requests.size(); ++i)
      ASSERT_TRUE(a.requests[i] == b.requests[i]) << "request " << i;
  }

 private:
  const bridge::NoAutograd no_autograd_{};
  fs::path root_ = fs::temp_directory_path() / ("neap-two-jobs-" + std::to_string(::getpid()));
  int folders_ = 0;
  std::optional<Settings> before_;
  c10::Allocator* allocator_ = nullptr;
};

// Settings of the process at requests of a job.
std::size_t deterministic_requests(const Results& results, int threads) {
  std::size_t count = 0;
  for (const Request& request : results.requests) {
    if (!request.settings) continue;
    EXPECT_EQ(request.settings->threads, threads);
    if (request.settings->deterministic) ++count;
  }
  return count;
}

TEST_F(TwoJobs, OneAfterTheOtherAndInTurnsComputeWhatTheyDoAlone) {
  const Results grpo = alone(float_grpo());
  expect_settings_of_the_process();
  const Results sft = alone(half_sft());
  expect_settings_of_the_process();
  EXPECT_EQ(deterministic_requests(grpo, 1), 0U);
  EXPECT_GT(deterministic_requests(sft, 2), 0U);
  expect_same(alone(float_grpo()), grpo);

  // Between any two phases of the one the other makes a step.
  std::optional<SteppedJob> first, second;
  std::size_t turns = 0;
  second.emplace(half_sft(), folder(), [] {});
  EXPECT_TRUE(second->streams());
  first.emplace(float_grpo(), folder(), [&] {
    if (second->done()) return;
    second->step();
    ++turns;
  });
  while (!first->done()) first->step();
  EXPECT_EQ(turns, 3U);
  ASSERT_TRUE(second->done());
  expect_settings_of_the_process();
  expect_same(first->results(), grpo);
  expect_same(second->results(), sft);
  second.reset();
  first.reset();
  expect_settings_of_the_process();
}

// What a job finds when it is made, and what the process does between phases.
void set_process(at::Context& torch, const char* float32, bool deterministic, bool attention) {
  torch.setFloat32MatmulPrecision(float32);
  torch.setDeterministicAlgorithms(deterministic, deterministic);  // as a warning
  torch.setSDPUseFlash(attention);
  torch.setSDPUseMath(attention);
}

TEST_F(TwoJobs, AJobKeepsTheSettingsThatItWasMadeWith) {
  at::Context& torch = at::globalContext();
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const Results sft = alone(half_sft());
  EXPECT_TRUE(at::equal(generator, at::detail::getDefaultCPUGenerator().get_state()));
  set_process(torch, "medium", true, true);
  const Results other = alone(float_grpo());

  std::optional<SteppedJob> first, second;
  set_process(torch, "highest", false, true);
  second.emplace(half_sft(), folder(), [] {});
  set_process(torch, "medium", true, true);
  first.emplace(float_grpo(), folder(), [&] {
    set_process(torch, "high", false, false);
    (void)at::rand({3});  // of the generator of the process
    if (!second->done()) second->step();
    EXPECT_EQ(torch.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGH);
    EXPECT_FALSE(torch.deterministicAlgorithms());
  });
  while (!first->done()) first->step();
  ASSERT_TRUE(second->done());
  expect_same(first->results(), other);
  expect_same(second->results(), sft);
  set_process(torch, "highest", false, true);
  expect_settings_of_the_process();
}

TEST_F(TwoJobs, WholeRunsOneAfterTheOtherGiveTheBitsOfTheirSteps) {
  const Files grpo = run_whole(float_grpo());
  expect_settings_of_the_process();
  const Files sft = run_whole(half_sft());
  expect_settings_of_the_process();
  EXPECT_FALSE(grpo.empty());
  EXPECT_TRUE(alone(float_grpo()).files == grpo);
  EXPECT_TRUE(alone(half_sft()).files == sft);
}

}  // namespace
}  // namespace neap::rlhf
