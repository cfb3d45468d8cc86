// Memory of one rank, read from the folder of a finished run.
//
// Failure   names the file and its defect.
//
// Cost      as load_report.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::report {

struct RunMemory {
  using ByName = std::map<std::string, Bytes, std::less<>>;
  std::string task;                          ///< task of the plan that the run executed
  ByName planned_tags, planned_temporaries;  ///< from this plan
  ByName tags;         ///< maximum device bytes of each tag; empty if the run wrote no trace
  ByName temporaries;  ///< maximum bytes reserved for each phase's temporaries
  /// Data that the trace lacks, one sentence each.
  std::vector<std::string> notes;
};

/// `run`: the output folder of a training or of one of its ranks (ranks/N).
[[nodiscard]] Result<RunMemory> read_run_memory(const std::filesystem::path& run);

}  // namespace neap::report
