#include "report/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::report {
namespace {

Status io_error(std::string_view verb, const std::filesystem::path& path, int error_number) {
  return {ErrorCode::kIo,
          "Cannot " + std::string(verb) + " " + path.string() + ": " + system_reason(error_number)};
}

}  // namespace

Result<AppendFile> AppendFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("open", path, errno);
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) {
    const int reason = errno;
    ::close(fd);
    return io_error("append to", path, reason);
  }
  return AppendFile(path, fd, static_cast<std::uint64_t>(size));
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status AppendFile::write(std::string_view record) {
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      // The torn record must not stand in front of the next one. If even cutting fails, readers
      // still drop it.
      const bool cut = done == 0 || ::ftruncate(fd_, static_cast<off_t>(size_)) == 0;
      if (!cut) size_ += done;
      return io_error("write", path_, reason);
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += record.size();
  return {};
}

Status AppendFile::sync() {
  if (::fsync(fd_) != 0 && errno != EINVAL) return io_error("sync", path_, errno);
  return {};
}

void warn_of_torn_line(std::string_view where, std::size_t bytes) {
  log::warn(format("{}: the last line is incomplete and left out ({} bytes)", where, bytes));
}

}  // namespace neap::report
