// Commands of the program that do not need libtorch.
#pragma once

#include <memory>

#include "cli/command.h"

namespace neap::cli {

[[nodiscard]] std::unique_ptr<Command> make_bench_command();
[[nodiscard]] std::unique_ptr<Command> make_doctor_command();
[[nodiscard]] std::unique_ptr<Command> make_plan_command();
[[nodiscard]] std::unique_ptr<Command> make_replay_command();
[[nodiscard]] std::unique_ptr<Command> make_report_command();
[[nodiscard]] std::unique_ptr<Command> make_reward_command();
[[nodiscard]] std::unique_ptr<Command> make_run_command();

/// All of them.
[[nodiscard]] Commands make_program_commands();

}  // namespace neap::cli
