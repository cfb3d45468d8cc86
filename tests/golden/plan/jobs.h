// The configurations of this folder, and what tests of their plans have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "plan/results/memory_plan.h"
#include "spec/job/job.h"

namespace neap::plan {

inline const std::filesystem::path kFolder =
    std::filesystem::path(NEAP_SOURCE_DIR) / "tests" / "golden" / "plan";

inline Target target_of(const spec::Job& job) {
  Target target;
  target.cuda = job.device.kind == "cuda";
  target.capacity = job.device.memory;
  target.threads = 2;
  return target;
}

inline constexpr std::array<std::pair<const char*, spec::CheckpointMode>, 3> kModes = {
    {{"none", spec::CheckpointMode::kNone},
     {"selective", spec::CheckpointMode::kSelective},
     {"full", spec::CheckpointMode::kFull}}};

template <class T>
inline bool changes_any(const std::vector<spec::JobChange>& changes, spec::JobField<T> field) {
  return std::any_of(changes.begin(), changes.end(), [&](const spec::JobChange& change) {
    return change.value_of(field) != nullptr;
  });
}

// What a plan says about the job can be pasted, and gives the plan.
inline void expect_overrides_give(const std::string& config, std::vector<std::string> overrides,
                                  const MemoryPlan& plan) {
  for (std::string& assignment : spec::assignments(plan.changes))
    overrides.push_back(std::move(assignment));
  spec::Job job;
  ASSERT_TRUE(spec::Job::load(kFolder / config, overrides, job).ok());
  Target target = target_of(job);
  target.capacity = plan.capacity;
  const Result<MemoryPlan> again = make_plan(job, target);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->peak, plan.peak);
  EXPECT_NEAR(again->seconds(), plan.seconds(), 1e-9 * plan.seconds());
}

/// The default of memory.allow without rollout_batch: all sequences are decoded together.
inline std::string whole_rollouts() {
  std::string names;
  for (const spec::Measure measure : spec::default_measures())
    if (measure != spec::Measure::kRolloutBatch)
      names += format("{}\"{}\"", names.empty() ? "" : ",", to_string(measure));
  return "memory.allow=[" + names + "]";
}

inline std::vector<std::string> with_auto(std::vector<std::string> more = {}) {
  for (const char* model : {"actor_rollout_ref.model", "critic.model"}) {
    more.push_back(format("{}.enable_gradient_checkpointing=false", model));
    more.push_back(format("{}.activation_checkpointing=auto", model));
  }
  return more;
}

}  // namespace neap::plan
