#include "base/installation.h"

#include <cstdlib>
#include <string>

#include "base/format.h"

namespace neap {

namespace fs = std::filesystem;

fs::path program_file() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

std::vector<fs::path> library_folders() {
  const fs::path folder = program_file().parent_path();
  const fs::path lib = folder.parent_path() / "lib";
  return {folder, lib, lib / "neap"};
}

Result<fs::path> find_library(std::string_view name, const char* variable) {
  std::error_code error;
  const char* chosen = variable != nullptr ? std::getenv(variable) : nullptr;
  if (chosen != nullptr && *chosen != '\0') {
    if (fs::is_regular_file(chosen, error)) return fs::absolute(chosen, error);
    return Status(ErrorCode::kNotFound,
                  format("{} is \"{}\", which is not a file", variable, chosen));
  }
  std::string searched;
  for (const fs::path& folder : library_folders()) {
    if (fs::path candidate = folder / name; fs::is_regular_file(candidate, error)) return candidate;
    searched += (searched.empty() ? "" : ", ") + folder.string();
  }
  return Status(ErrorCode::kNotFound, format("{} is in none of: {}", name, searched));
}

}  // namespace neap
