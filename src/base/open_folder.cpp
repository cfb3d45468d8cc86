#include "base/open_folder.h"

#include <system_error>

#include "base/format.h"

namespace neap {

std::filesystem::path path_through(int directory, const std::filesystem::path& path) {
  const std::filesystem::path through = format("/proc/self/fd/{}", directory);
  std::error_code error;
  return std::filesystem::is_directory(through, error) ? through : path;
}

}  // namespace neap
