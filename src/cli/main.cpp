// `neap`: every command but the trainer's, which is in a library of its own because it needs libtorch.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/command.h"
#include "cli/program_commands.h"
#include "cli/trainer_library.h"

namespace {

/// Whether somebody may have put a library into the process that writes its records as it ends.
bool is_observed() {
  return std::getenv("LD_PRELOAD") != nullptr || std::getenv("CUDA_INJECTION64_PATH") != nullptr;
}

neap::cli::Commands program_commands() {
  using namespace neap::cli;
  Commands commands;
  commands.push_back(make_bench_command());
  commands.push_back(make_doctor_command());
  commands.push_back(make_plan_command());
  commands.push_back(make_replay_command());
  commands.push_back(make_report_command());
#ifdef NEAP_HAS_REWARDS
  commands.push_back(make_reward_command());
#endif
  commands.push_back(make_run_command());
  return commands;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace neap::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a write over the limit of a file's size fails, with a message
  const std::string_view name = argc > 1 ? argv[1] : "";
  const bool needs_trainer =
      std::any_of(kTrainerCommands.begin(), kTrainerCommands.end(),
                  [&](const TrainerCommand& command) { return command.name == name; });
  if (!needs_trainer) return run_command(program_commands(), argc, argv);
  const neap::Result<Trainer> trainer = load_trainer();
  if (!trainer.ok()) return fail(trainer.status());
  const int code = trainer->main(argc, argv);
  if (is_observed()) return code;
  // The command has closed and freed what it held. libtorch's static destructors would take 0.15 s.
  std::fflush(nullptr);
  std::_Exit(code);
}
