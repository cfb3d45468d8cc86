// The stages of a simulated pipeline as a picture.
//
// Failure   kInvalidArgument for another kind of file and for a job without stages, kIo.
#pragma once

#include <filesystem>

#include "plan/simulation.h"

namespace neap::cli {

/// To an .svg or .png file: a mini-batch, forward and backward of each stage.
[[nodiscard]] Status write_picture(const plan::Simulation& simulation,
                                   const std::filesystem::path& file);

}  // namespace neap::cli
