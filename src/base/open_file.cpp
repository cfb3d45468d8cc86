#include "base/open_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "base/file.h"
#include "base/format.h"

namespace neap {
namespace {

bool has_name(int pipe) {
  struct statfs system {};
  return ::fstatfs(pipe, &system) == 0 && system.f_type != PIPEFS_MAGIC;
}

}  // namespace

Result<Descriptor> open_file(const std::filesystem::path& path,
                             std::chrono::milliseconds patience) {
  const auto failure = [&](std::string_view verb) {
    return Status(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                  format("Cannot {} {}: {}", verb, path.string(), system_reason(errno)));
  };
  // Without O_NONBLOCK, opening a pipe would wait for the program that writes.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return failure("open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failure("stat");
  if (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return fd;
  if (S_ISFIFO(info.st_mode) && has_name(fd.get())) {
    pollfd pipe{fd.get(), POLLIN, 0};
    const int ready = ::poll(&pipe, 1, static_cast<int>(patience.count()));
    if (ready == 0)
      return Status(ErrorCode::kInvalidArgument,
                    format("{} is a pipe into which no program has written for {} ms: name a "
                           "file, or start that program first",
                           path.string(), patience.count()));
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) return failure("open");
  return fd;
}

}  // namespace neap
