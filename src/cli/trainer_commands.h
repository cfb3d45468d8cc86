// Commands of the trainer's library, which need libtorch.
#pragma once

#include <memory>

#include "cli/command.h"

namespace neap::cli {

[[nodiscard]] std::unique_ptr<Command> make_eval_command();
[[nodiscard]] std::unique_ptr<Command> make_generate_command();
[[nodiscard]] std::unique_ptr<Command> make_merge_command();
[[nodiscard]] std::unique_ptr<Command> make_train_command();

}  // namespace neap::cli
