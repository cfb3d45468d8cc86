// The second stage of a training run: the plan that ranks agree on. Its choices become the job's.
//
// Threads   one at a time.
// Failure   Error on every rank; a parallel::CollectiveError if there are several.
#pragma once

#include <string>
#include <vector>

#include "plan/results/memory_plan.h"
#include "rlhf/run/run_start.h"

namespace neap::rlhf {

class RunPlan {
 public:
  /// Makes the plan, and applies its choices to `start.job`. Opens the copy lanes that it uses.
  explicit RunPlan(RunStart& start);

  [[nodiscard]] const plan::MemoryPlan& plan() const { return plan_; }
  /// For messages: which ranks the first rank's plan applies to.
  [[nodiscard]] std::string whose_plan() const;

 private:
  void open_copy_lanes() const;
  void make();
  void compare();
  void compare_model(spec::ModelId model) const;
  void add_stage_waits();

  RunStart& start_;
  plan::MemoryPlan plan_;
  std::vector<double> kind_peaks_;  // planned peak of each kind of rank
};

}  // namespace neap::rlhf
