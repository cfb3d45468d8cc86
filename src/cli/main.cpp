// `neap`: every command but the trainer's, which is in a library of its own because it needs libtorch.
#include <algorithm>
#include <string_view>

#include "cli/command.h"
#include "cli/trainer_library.h"

int main(int argc, char** argv) {
  using namespace neap::cli;
  const std::string_view name = argc > 1 ? argv[1] : "";
  const bool needs_trainer =
      std::any_of(kTrainerCommands.begin(), kTrainerCommands.end(),
                  [&](const TrainerCommand& command) { return command.name == name; });
  if (!needs_trainer) return run_command(argc, argv);
  const neap::Result<Trainer> trainer = load_trainer();
  if (!trainer.ok()) return fail(trainer.status());
  return trainer->main(argc, argv);
}
