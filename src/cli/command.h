// A subcommand of `neap`. Each has its own file and a function that makes it (program_commands.h,
// trainer_commands.h).
//
// Conventions  data on stdout, logs and progress on stderr; --json on every command that prints
//              data; sizes with units.
//
// Exit codes   0 done, 1 failed, 2 usage, configuration or data, 3 does not fit in memory (exit_code below).
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::cli {

inline constexpr std::string_view kHookLibrary = "libneap_hook.so";
inline constexpr const char* kHookLibraryVariable = "NEAP_HOOK_LIBRARY";

class Command {
 public:
  virtual ~Command() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< one line, no full stop
  /// Declares options on this command's app. Called once, before parsing.
  virtual void declare(CLI::App& app) = 0;
  /// Runs the command and returns the exit code. run_command() turns neap::Error and Status
  /// failures into messages.
  virtual int run() = 0;
  /// Facts about this command for `neap doctor`, as names with text; null if it has none.
  [[nodiscard]] virtual Json facts() const { return nullptr; }
};

/// A command of the trainer's library, for listing without loading that library.
struct TrainerCommand {
  std::string_view name, summary;
};
inline constexpr TrainerCommand kTrain{
    "train", "Run SFT, reward-model, DPO, PPO or GRPO training from a configuration file"};
inline constexpr TrainerCommand kGenerate{"generate", "Generate text with a checkpoint"};
inline constexpr TrainerCommand kEval{"eval",
                                      "Score a checkpoint's responses to a file of prompts"};
inline constexpr TrainerCommand kMerge{"merge", "Merge a LoRA adapter into its base"};
inline constexpr std::array<TrainerCommand, 4> kTrainerCommands = {kTrain, kGenerate, kEval,
                                                                   kMerge};
[[nodiscard]] constexpr bool needs_trainer(std::string_view command) {
  for (const TrainerCommand& each : kTrainerCommands)
    if (each.name == command) return true;
  return false;
}

using Commands = std::vector<std::unique_ptr<Command>>;

/// Parses the command line and runs the named command. Failures become messages.
[[nodiscard]] int run_command(const Commands& commands, int argc, char** argv);

/// Writes a command's data to standard output, with a single call if the system accepts it.
[[nodiscard]] Status write_output(std::string_view text);

/// Returns 2 for usage and configuration, 3 for memory, 1 for other failures.
[[nodiscard]] int exit_code(const Status& status);
/// Prints the failure on stderr without the C++ stack that libtorch appends. Returns its exit code.
[[nodiscard]] int fail(const Status& status);
[[nodiscard]] int fail(const std::exception& error);

}  // namespace neap::cli
