#include "base/file_identity.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/file.h"
#include "base/format.h"

namespace neap {

Result<std::string> file_identity(int fd) {
  // Two machines may use the same numbers for one shared file, or for files of two file systems.
  NEAP_TRY_ASSIGN(std::string kernel, read_file("/proc/sys/kernel/random/boot_id", 4_KiB));
  if (kernel.ends_with('\n')) kernel.pop_back();
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Status(ErrorCode::kIo, "Cannot stat a file: " + system_reason(errno));
  return format("{} {} {}", kernel, info.st_dev, info.st_ino);
}

}  // namespace neap
