// Curves, warnings and responses of a training for its report.
//
// Threads   values.
//
// Failure   names the file and its defect; files that a run lacks are skipped.
//
// Cost      one pass over metrics.jsonl and validation.jsonl, one line at a time, and the newest
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
  std::vector<StepRollouts> samples;    ///< from the first and the last validation
  std::vector<StepRollouts> responses;  ///< from the newest steps that have responses
};

/// Reads a run's folder.
[[nodiscard]] Result<TrainingReport> load_training(const std::filesystem::path& run);

/// Sections of the page: the curves, which come first, and the texts, which come last. Empty if
/// there is nothing to show.
[[nodiscard]] std::string curves_html(const TrainingReport& report);
[[nodiscard]] std::string texts_html(const TrainingReport& report);

}  // namespace neap::report
