// The command line: finds the subcommand, turns failures into one message and an exit code.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string_view>

#include "base/format.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/version.h"

namespace neap::cli {

std::vector<std::unique_ptr<Command>>& registry() {
  static std::vector<std::unique_ptr<Command>> commands;
  return commands;
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOk:
      return 0;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kAlreadyExists:
      return 2;
    case ErrorCode::kDoesNotFit:
    case ErrorCode::kOutOfDeviceMemory:
      return 3;
    default:
      return 1;
  }
}

int fail(const Status& status) {
  std::string_view reason = status.message();
  if (!log::enabled(log::Level::kDebug))
    reason = reason.substr(0, reason.find("\nException raised from"));
  log::error(reason);
  return exit_code(status);
}

int fail(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return fail(known->status());
  return fail(Status(ErrorCode::kInternal, error.what()));
}

namespace {

// The order of `neap --help`; a command that this build lacks is named with the reason.
struct Listed {
  std::string_view name;
  bool needs_torch;
};
constexpr std::array<Listed, 8> kOrder{{{"train", true},
                                        {"plan", false},
                                        {"replay", false},
                                        {"report", false},
                                        {"run", false},
                                        {"generate", true},
                                        {"bench", false},
                                        {"doctor", false}}};

std::size_t rank(std::string_view name) {
  const auto* const it =
      std::find_if(kOrder.begin(), kOrder.end(), [&](const Listed& l) { return l.name == name; });
  return static_cast<std::size_t>(it - kOrder.begin());
}

int run(int argc, char** argv) {
  CLI::App app(
      "Neap keeps the high-water mark of GPU memory low in RL post-training of language models.",
      "neap");
  app.set_version_flag("--version", std::string("neap ") + kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer(
      "Sizes need a unit (24GiB, 384MiB). Data goes to stdout, logs and progress to stderr.\n"
      "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 does not fit in memory.\n"
      "Environment: NEAP_LOG=debug|info|warn|error|off, NEAP_PROGRESS=off.");
  auto& commands = registry();
  std::sort(commands.begin(), commands.end(),
            [](const auto& a, const auto& b) { return rank(a->name()) < rank(b->name()); });
  std::vector<std::pair<CLI::App*, Command*>> known;
  for (const auto& command : commands) {
    CLI::App* sub = app.add_subcommand(command->name(), command->summary());
    command->declare(*sub);
    known.emplace_back(sub, command.get());
  }
  if (argc > 1) {
    for (const Listed& listed : kOrder) {
      const bool built = std::any_of(commands.begin(), commands.end(),
                                     [&](const auto& c) { return c->name() == listed.name; });
      if (listed.name == argv[1] && !built && listed.needs_torch) {
        log::error(
            format("\"neap {}\" is not in this build, which was made without libtorch. Run "
                   "scripts/setup, then "
                   "build the preset \"full\".",
                   listed.name));
        return 1;
      }
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return 2;
  }
  for (const auto& [sub, command] : known) {
    if (sub->parsed()) return command->run();
  }
  return 2;
}

}  // namespace
}  // namespace neap::cli

int main(int argc, char** argv) {
  try {
    return neap::cli::run(argc, argv);
  } catch (const std::exception& e) {
    return neap::cli::fail(e);
  }
}
