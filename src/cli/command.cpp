// Finds the subcommand, turns failures into one message and an exit code.
#include "cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/version.h"

namespace neap::cli {

Status write_output(std::string_view text) {
  std::fflush(stdout);
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return {ErrorCode::kIo, format("Cannot write to standard output: {}", system_reason(errno))};
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOk:
      return 0;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kCorrupt:
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

// The order of `neap --help`.
constexpr std::array<std::string_view, 11> kOrder{"train", "plan",     "replay", "report",
                                                  "run",   "generate", "eval",   "reward",
                                                  "merge", "bench",    "doctor"};

/// The parser only reports that a command is required; this check names the unknown word.
Status check_command(std::string_view word) {
  if (word.empty() || word.front() == '-') return {};
  const auto nearest =
      std::min_element(kOrder.begin(), kOrder.end(), [&](std::string_view a, std::string_view b) {
        return edit_distance(word, a) < edit_distance(word, b);
      });
  const std::size_t distance = edit_distance(word, *nearest);
  if (distance == 0) return {};
  // If more than half of the letters differ, any word would be near.
  return {ErrorCode::kInvalidArgument,
          format("\"{}\" is not a command{}; `neap --help` lists them", word,
                 distance <= nearest->size() / 2 ? format(", did you mean \"{}\"?", *nearest)
                                                 : std::string())};
}

/// Prints an option's values and default. CLI11 also prints ranges, and names of other options,
/// which messages name.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return {};
    const std::string values = values_of(option->get_type_name());
    std::string text = option->get_positional() && values == "TEXT" ? "" : " " + values;
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    return text;
  }

 private:
  /// "{auto,cuda}" of "TEXT:{auto,cuda}", "N" of "INT:INT in [1 - 4]" and of "N:POSITIVE".
  static std::string values_of(std::string type) {
    if (const std::size_t list = type.find(":{"); list != std::string::npos)
      return type.substr(list + 1);
    for (const char* check : {":INT in ", ":FLOAT in ", ":POSITIVE", ":NONNEGATIVE", ":not "})
      type = type.substr(0, type.find(check));
    return type == "INT" || type == "UINT" || type == "FLOAT" ? "N" : type;
  }
};

int parse_and_run(const Commands& commands, int argc, char** argv) {
  if (const Status known = check_command(argc > 1 ? argv[1] : ""); !known.ok()) return fail(known);

  CLI::App app(
      "Neap plans, limits and measures GPU memory in RL post-training of language models.\n"
      "Usual order: neap doctor, neap plan JOB.toml, neap train JOB.toml, neap report FOLDER.",
      "neap");
  app.set_version_flag("--version", std::string("neap ") + kVersion);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  app.footer(
      "Sizes need a unit (24GiB, 384MiB). Data goes to stdout, logs and progress to stderr.\n"
      "Exit codes: 0 done, 1 failed, 2 usage, configuration or data, 3 does not fit in memory.\n"
      "Environment: NEAP_LOG=debug|info|warn|error|off, NEAP_PROGRESS=off.");
  std::vector<std::pair<CLI::App*, Command*>> known;
  for (const std::string_view name : kOrder) {
    const auto found = std::find_if(commands.begin(), commands.end(),
                                    [&](const auto& command) { return command->name() == name; });
    if (found != commands.end()) {
      CLI::App* const sub = app.add_subcommand((*found)->name(), (*found)->summary());
      sub->get_help_ptr()->group("");  // not listed: who reads the list knows --help
      (*found)->declare(*sub);
      known.emplace_back(sub, found->get());
      continue;
    }
    // These commands are only listed: main() passes them to the trainer's library before this code
    // runs.
    for (const TrainerCommand& listed : kTrainerCommands) {
      if (listed.name == name) app.add_subcommand(std::string(name), std::string(listed.summary));
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

/// Fails a command whose output could not be written, for example on a full disk.
int flushed(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  log::error(format("Cannot write to standard output{}",
                    errno != 0 ? ": " + system_reason(errno) : std::string()));
  return code != 0 ? code : 1;
}

}  // namespace

int run_command(const Commands& commands, int argc, char** argv) {
  try {
    return flushed(parse_and_run(commands, argc, argv));
  } catch (const std::exception& e) {
    return fail(e);
  }
}

}  // namespace neap::cli
