// Measurements of a finished run for the terms of a sheet.
//
// Threads   values and stateless functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formulas/sheet.h"
#include "spec/job/job.h"

namespace neap::formulas {

/// Bytes on one rank.
struct RankMemory {
  using ByName = std::map<std::string, double, std::less<>>;
  ByName tags;         ///< maximum device bytes of a tag, by "actor.weights"
  ByName temporaries;  ///< maximum bytes reserved for a phase's temporaries, by "train_actor"
};
struct RunRecords {
  RankMemory measured;
  std::string tags_from, temporaries_from;  ///< files of `measured`, for Measurement::source
  RankMemory planned;                       ///< from the plan that the run executed
};

/// Parallel sizes of a model; data 0: from the job's ranks.
[[nodiscard]] Degrees degrees_of(const spec::Job& job, spec::ModelId model);
/// Parallel sizes of each model, or nothing if all models have the same.
[[nodiscard]] DegreesOfModels own_degrees_of(const spec::Job& job);

/// Adds the measurements of a run of `job` to the lines. A line gets none if one of its tags or
/// phases has no record. Lines of a whole model get measurements only if each rank of the run holds
/// the whole model. Lines of a rank's shard count bytes as the run's plan did.
void add_measured(const spec::Job& job, const JobSizes& sizes, const RunRecords& run, Sheet& sheet);

}  // namespace neap::formulas
