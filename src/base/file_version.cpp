#include "base/file_version.h"

#include <sys/stat.h>

#include <cerrno>
#include <ctime>

#include "base/file.h"
#include "base/format.h"

namespace neap {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// File systems store times at least this precisely.
constexpr std::int64_t kFresh = 2 * kSecond;

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

Result<FileVersion> version(bool found, const struct stat& info,
                            const std::filesystem::path& name) {
  if (!found)
    return Status(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                  format("Cannot stat {}: {}", name.string(), system_reason(errno)));
  return FileVersion{info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size),
                     nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
}

}  // namespace

bool FileVersion::has_contents_of(const FileVersion& before) const {
  return size == before.size && written_ns == before.written_ns;
}

bool FileVersion::is_fresh() const {
  timespec now{};
  (void)::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now) - changed_ns < kFresh;
}

std::string FileVersion::text() const {
  return format("{} {} {} {} {}", device, inode, size, written_ns, changed_ns);
}

Result<FileVersion> version_of(const std::filesystem::path& file) {
  struct stat info {};
  return version(::stat(file.c_str(), &info) == 0, info, file);
}

Result<FileVersion> version_of(int fd, const std::filesystem::path& name) {
  struct stat info {};
  return version(::fstat(fd, &info) == 0, info, name);
}

}  // namespace neap
