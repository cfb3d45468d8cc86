#include "base/open_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/format.h"

namespace neap {
namespace {

bool has_name(int pipe) {
  struct statfs system {};
  return ::fstatfs(pipe, &system) == 0 && system.f_type != PIPEFS_MAGIC;
}

Status failure(std::string_view verb, const std::filesystem::path& path) {
  return {errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          format("Cannot {} {}: {}", verb, path.string(), system_reason(errno))};
}

Result<Descriptor> open_with_state(const std::filesystem::path& path, struct stat& info) {
  // Without O_NONBLOCK, opening a pipe would wait for the program that writes.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return failure("open", path);
  if (::fstat(fd.get(), &info) != 0) return failure("stat", path);
  return fd;
}

std::string_view kind_of(const struct stat& info) {
  return S_ISDIR(info.st_mode)    ? "a folder"
         : S_ISFIFO(info.st_mode) ? "a pipe"
         : S_ISSOCK(info.st_mode) ? "a socket"
                                  : "a device";
}

}  // namespace

Status check_holes(int fd, const std::filesystem::path& path) {
  static constexpr ReadLimits kLimits{.what = "the part of it that was written",
                                      .unpacked = read_limits::kPacked.unpacked,
                                      .advice = "the rest is a hole: write or copy it again"};
  constexpr int kMostParts = 1000;
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return {};
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (static_cast<double>(size) <= kLimits.unpacked.fixed) return {};
  std::uint64_t written = 0;
  // File systems that know no holes say that all is one part.
  off_t begin = ::lseek(fd, 0, SEEK_DATA);
  for (int part = 0; begin >= 0; ++part) {
    const off_t end = ::lseek(fd, begin, SEEK_HOLE);
    if (end < begin || part == kMostParts) written = size;
    if (written == size) break;
    written += static_cast<std::uint64_t>(end - begin);
    begin = ::lseek(fd, end, SEEK_DATA);
  }
  if (begin < 0 && errno != ENXIO) written = size;  // ENXIO: only a hole is left
  if (::lseek(fd, 0, SEEK_SET) != 0) return failure("read", path);
  if (static_cast<double>(size) <= kLimits.unpacked.of(written)) return {};
  return over_limit(path.string(), kLimits, Excess::kUnpacked, written, ErrorCode::kCorrupt);
}

Result<Descriptor> open_regular_file(const std::filesystem::path& path, const ReadLimits& limits) {
  struct stat info {};
  NEAP_TRY_ASSIGN(Descriptor fd, open_with_state(path, info));
  if (!S_ISREG(info.st_mode))
    return Status(ErrorCode::kInvalidArgument,
                  format("{} is {}, not a file", path.string(), kind_of(info)));
  if (!limits.file.is_zero() && Bytes(static_cast<std::uint64_t>(info.st_size)) > limits.file)
    return over_limit(path.string(), limits, Excess::kFile);
  return fd;
}

Result<Descriptor> open_file(const std::filesystem::path& path,
                             std::chrono::milliseconds patience) {
  struct stat info {};
  NEAP_TRY_ASSIGN(Descriptor fd, open_with_state(path, info));
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
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    return failure("open", path);
  return fd;
}

}  // namespace neap
