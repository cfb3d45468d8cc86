#include "cli/hook_library.h"

#include <cstdlib>
#include <filesystem>

#include "base/format.h"

namespace neap::cli {

namespace fs = std::filesystem;

Result<std::string> find_hook_library() {
  if (const char* chosen = std::getenv("NEAP_HOOK_LIBRARY"); chosen != nullptr && *chosen != '\0') {
    if (fs::exists(chosen)) return fs::absolute(chosen).string();
    return Status(ErrorCode::kNotFound,
                  format("NEAP_HOOK_LIBRARY names {}, which is not there", chosen));
  }
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& folder : {binary, binary.parent_path() / "lib"}) {
    const fs::path candidate = folder / "libneap_hook.so";
    if (fs::exists(candidate, error)) return candidate.string();
  }
  return Status(ErrorCode::kNotFound,
                format("libneap_hook.so lies neither in {} nor in {}; build it with `cmake --build "
                       "... --target neap_hook_library` or set NEAP_HOOK_LIBRARY",
                       binary.string(), (binary.parent_path() / "lib").string()));
}

}  // namespace neap::cli
