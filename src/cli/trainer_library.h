// Loads the trainer (libneap_trainer.so) and the libtorch that it needs. libtorch is the first of:
//
// 1. the folder NEAP_TORCH_ROOT, which contains torch/;
// 2. the libtorch that the library was linked with, in a build folder;
// 3. the torch that python3 on PATH would import.
//
// Threads   one.
//
// Failure   kUnsupported, with the missing part and how to get it.
//
// Cost      one start of python3 if it is asked, and libtorch's own start (0.3 s).
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
  std::filesystem::path libtorch;  ///< path of the libtorch_cpu.so in use
};

/// Loads both libraries for the life of the process.
[[nodiscard]] Result<Trainer> load_trainer();

}  // namespace neap::cli
