// Draws the stages of a simulated pipeline.
//
// Failure   kInvalidArgument for other file types and for a job without stages; kIo.
#pragma once

#include <filesystem>

#include "plan/search/simulation.h"

namespace neap::cli {

/// Writes an .svg or .png file that shows forward and backward of each stage for one mini-batch.
[[nodiscard]] Status write_picture(const plan::Simulation& simulation,
                                   const std::filesystem::path& file);

}  // namespace neap::cli
