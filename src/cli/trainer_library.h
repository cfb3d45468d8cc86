// Loads the trainer (libneap_trainer.so) and the libtorch that it needs.
//
// libtorch is, in this order: NEAP_TORCH_ROOT, a folder that holds torch/; the one that the library
// was linked with, in a build folder; the torch that python3 on PATH would import.
//
// Threads   one.
// Failure   kUnsupported, with what is missing and how to get it.
// Cost      one start of python3 where it is asked, and libtorch's own start (0.3 s).
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "cli/trainer_main.h"

namespace neap::cli {

inline constexpr std::string_view kTrainerLibrary = "libneap_trainer.so";
inline constexpr const char* kTrainerLibraryVariable = "NEAP_TRAINER_LIBRARY";

struct Trainer {
  NeapTrainerMain main = nullptr;
  NeapTrainerFacts facts = nullptr;
  std::filesystem::path library;
  std::filesystem::path libtorch;  ///< the libtorch_cpu.so in use
};

/// Loads both for the rest of the process.
[[nodiscard]] Result<Trainer> load_trainer();

}  // namespace neap::cli
