#include "base/file_identity.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/file.h"
#include "base/format.h"

namespace neap {

Result<std::string> file_identity(int fd) {
  // Machines may have the same numbers for a file, of a file system that they share or of two.
  NEAP_TRY_ASSIGN(std::string kernel, read_file("/proc/sys/kernel/random/boot_id", 4_KiB));
  if (kernel.ends_with('\n')) kernel.pop_back();
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Status(ErrorCode::kIo, "Cannot stat a file: " + system_reason(errno));
  return format("{} {} {}", kernel, info.st_dev, info.st_ino);
}

}  // namespace neap
