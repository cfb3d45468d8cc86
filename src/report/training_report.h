// What a training did, for its report: curves, warnings, responses.
//
// Threads   values.   Failure   names the file and what is wrong with it; files that a run lacks are
//           left out.
// Cost      one pass over metrics.jsonl and validation.jsonl, a line at a time, and the newest
//           responses.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "report/rollout_log.h"
#include "report/training_curves.h"

namespace neap::report {

struct TrainingReport {
  std::vector<CurvePanel> curves;
  std::vector<std::string> warnings;    ///< "step 12: ..."
  std::vector<StepRollouts> samples;    ///< of the first and the last validation
  std::vector<StepRollouts> responses;  ///< of the newest steps that have them
};

/// Of a run's folder.
[[nodiscard]] Result<TrainingReport> load_training(const std::filesystem::path& run);

/// Sections of the page: the curves, which come first, and the texts, which come last. Empty where
/// there is nothing to show.
[[nodiscard]] std::string curves_html(const TrainingReport& report);
[[nodiscard]] std::string texts_html(const TrainingReport& report);

}  // namespace neap::report
