// `neap`: every command but the trainer's, which is in a library of its own because it needs libtorch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/command.h"
#include "cli/trainer_library.h"

namespace {

/// Whether somebody may have put a library into the process that writes its records as it ends.
bool is_observed() {
  return std::getenv("LD_PRELOAD") != nullptr || std::getenv("CUDA_INJECTION64_PATH") != nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace neap::cli;
  const std::string_view name = argc > 1 ? argv[1] : "";
  const bool needs_trainer =
      std::any_of(kTrainerCommands.begin(), kTrainerCommands.end(),
                  [&](const TrainerCommand& command) { return command.name == name; });
  if (!needs_trainer) return run_command(argc, argv);
  const neap::Result<Trainer> trainer = load_trainer();
  if (!trainer.ok()) return fail(trainer.status());
  const int code = trainer->main(argc, argv);
  if (is_observed()) return code;
  // The command has closed and freed what it held. libtorch's static destructors would take 0.15 s.
  std::fflush(nullptr);
  std::_Exit(code);
}
