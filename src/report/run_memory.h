// What the folder of a finished run says of the memory of one rank.
//
// Failure   names the file and what is wrong with it.
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
  std::string task;                          ///< of the plan that the run executed
  ByName planned_tags, planned_temporaries;  ///< by this plan
  ByName tags;  ///< the most that each held of the device; empty where the run wrote no trace
  ByName temporaries;  ///< of each phase, the most that its temporaries reserved
  /// What the trace does not have, one sentence each.
  std::vector<std::string> notes;
};

/// `run`: the output folder of a training, or that of one of its ranks (ranks/N).
[[nodiscard]] Result<RunMemory> read_run_memory(const std::filesystem::path& run);

}  // namespace neap::report
