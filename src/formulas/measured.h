// What a finished run measured of a sheet's terms.
//
// Threads   values and functions without state.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formulas/sheet.h"
#include "spec/job.h"

namespace neap::formulas {

/// Bytes of one rank.
struct RankMemory {
  using ByName = std::map<std::string, double, std::less<>>;
  ByName tags;         ///< most that a tag holds of the device, by "actor.weights"
  ByName temporaries;  ///< most that a phase's temporaries reserve, by "train_actor"
};
struct RunRecords {
  RankMemory measured;
  std::string tags_from, temporaries_from;  ///< the files of `measured`, for Measurement::source
  RankMemory planned;                       ///< by the plan that the run executed
};

/// How the ranks of a job divide a model; data 0: by the job's ranks.
[[nodiscard]] Degrees degrees_of(const spec::Job& job, spec::ModelId model);
/// Of each, where they divide not all alike; else nothing.
[[nodiscard]] DegreesOfModels own_degrees_of(const spec::Job& job);

/// Puts what a run of `job` measured to the lines. A line keeps none where a tag or phase that it is made of
/// has no record. Lines of a whole model have measurements only of a run whose ranks hold it whole. What a rank has of
/// divided ones is counted as the run's plan had it.
void add_measured(const spec::Job& job, const JobSizes& sizes, const RunRecords& run, Sheet& sheet);

}  // namespace neap::formulas
