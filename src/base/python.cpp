#include "base/python.h"

#include <algorithm>

extern char** environ;

namespace neap {
namespace {

// Python 3.11 and newer then never search the working folder, not even before the first line. Older
// versions ignore it.
constexpr std::string_view kSafePath = "PYTHONSAFEPATH=";
constexpr std::string_view kPath = "PYTHONPATH=";

// `sys` is built in, so importing it searches no folder. The variable is removed because it is not
// meant for programs that this program starts.
constexpr std::string_view kPrelude = R"(import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import os
if os.environ.get("PYTHONSAFEPATH") == "neap":
    del os.environ["PYTHONSAFEPATH"]
)";

// Removes empty entries of PYTHONPATH. They mean the working folder and come from
// "$PYTHONPATH:/more".
std::string without_empty(std::string_view entry) {
  std::string out;
  std::string_view rest = entry.substr(kPath.size());
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (!folder.empty()) out.append(out.empty() ? "" : ":").append(folder);
  }
  return std::string(kPath) + out;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** at = environ; *at != nullptr; ++at) out.emplace_back(*at);
  return out;
}

}  // namespace

ChildProcess::Program python_program(std::string_view code,
                                     const std::vector<std::string>& arguments,
                                     std::vector<std::string> interpreter,
                                     std::optional<std::vector<std::string>> environment) {
  ChildProcess::Program out{std::move(interpreter)};
  out.words.emplace_back("-c");
  out.words.push_back(std::string(kPrelude).append(code));
  out.words.insert(out.words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment ? std::move(*environment) : own_environment();
  const auto begins_with = [](std::string_view name) {
    return [name](const std::string& entry) { return entry.starts_with(name); };
  };
  const auto path = std::find_if(variables.begin(), variables.end(), begins_with(kPath));
  if (path != variables.end()) *path = without_empty(*path);
  if (std::none_of(variables.begin(), variables.end(), begins_with(kSafePath)))
    variables.push_back(std::string(kSafePath) + "neap");
  out.environment = std::move(variables);
  return out;
}

}  // namespace neap
