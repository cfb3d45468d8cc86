// Runs a job on the ranks that the launcher started, for `neap train` and `neap eval`.
//
// Threads   one per process.
//
// Failure   messages and exit codes; Error for an invalid job.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "rlhf/run/run.h"
#include "spec/job/job.h"

namespace neap::cli {

/// Loads the job (without a file: from the overrides alone), joins the ranks and calls `body`,
/// which returns the exit code. A rank that fails ends the others.
[[nodiscard]] int run_on_ranks(
    const std::filesystem::path& config, const std::vector<std::string>& overrides,
    const std::function<int(const spec::Job&, const rlhf::Launch&)>& body);

}  // namespace neap::cli
