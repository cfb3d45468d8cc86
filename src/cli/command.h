// A subcommand of `neap`: one file each, registered by NEAP_COMMAND at its end.
//
// Conventions  data on stdout, logs and progress on stderr; --json on every command that prints data; sizes with units.
// Exit codes   0 done, 1 failed, 2 usage or configuration, 3 does not fit in memory (exit_code below).
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace neap::cli {

class Command {
 public:
  virtual ~Command() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;  ///< one line, no full stop
  /// Declares options on this command's own app. Called once, before parsing.
  virtual void declare(CLI::App& app) = 0;
  /// Does the work; returns the exit code. neap::Error and Status failures become messages in main.
  virtual int run() = 0;
  /// What this command found here, for `neap doctor`: names with text. Null: nothing to say.
  [[nodiscard]] virtual Json facts() const { return nullptr; }
};

[[nodiscard]] std::vector<std::unique_ptr<Command>>& registry();

/// 2 for usage and configuration, 3 for memory, 1 for the rest.
[[nodiscard]] int exit_code(const Status& status);
/// Prints the failure on stderr, without the C++ stack that libtorch appends, and returns its exit
/// code.
[[nodiscard]] int fail(const Status& status);
[[nodiscard]] int fail(const std::exception& error);

}  // namespace neap::cli

#define NEAP_COMMAND(Class)                                                                      \
  namespace {                                                                                    \
  const bool kRegistered##Class = (::neap::cli::registry().push_back(std::make_unique<Class>()), \
                                   true); /* NOLINT(cert-err58-cpp) */                           \
  }
