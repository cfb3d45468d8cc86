#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace neap {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int close_now() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

Status io_error(std::string_view verb, const std::filesystem::path& path, int error_number) {
  return {error_number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          "Cannot " + std::string(verb) + " " + path.string() + ": " + system_reason(error_number)};
}

}  // namespace

std::string system_reason(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

Result<std::string> read_file(const std::filesystem::path& path, Bytes limit) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_error("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("stat", path, errno);
  if (S_ISDIR(info.st_mode)) return io_error("read", path, EISDIR);
  if (info.st_size > 0 && Bytes(static_cast<std::uint64_t>(info.st_size)) > limit) {
    return Status(ErrorCode::kInvalidArgument,
                  path.string() + " is " +
                      to_string(Bytes(static_cast<std::uint64_t>(info.st_size))) +
                      ", over the limit of " + to_string(limit));
  }
  std::string contents;
  contents.resize(static_cast<std::size_t>(info.st_size > 0 ? info.st_size : 0));
  std::size_t have = 0;
  while (true) {
    if (have == contents.size())
      contents.resize(contents.size() + 65536);  // pipes, /proc, growing files
    const ssize_t n = ::read(fd.get(), contents.data() + have, contents.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("read", path, errno);
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
    if (Bytes(have) > limit) {
      return Status(ErrorCode::kInvalidArgument,
                    path.string() + " is over the limit of " + to_string(limit));
    }
  }
  contents.resize(have);
  return contents;
}

Result<std::filesystem::path> user_cache_folder() {
  // A relative path is invalid by the base directory specification.
  const auto absolute = [](const char* variable) {
    const char* value = std::getenv(variable);
    const std::filesystem::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "neap";
  if (const auto home = absolute("HOME"); !home.empty()) return home / ".cache" / "neap";
  return Status(ErrorCode::kNotFound, "Neither XDG_CACHE_HOME nor HOME names a folder");
}

Status sync_path(const std::filesystem::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_error("open", path, errno);
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return io_error("sync", path, errno);
  return {};
}

Status write_file_atomic(const std::filesystem::path& path, std::string_view contents) {
  const std::filesystem::path temporary = path.string() + ".tmp-" + std::to_string(::getpid());
  const auto fail = [&](std::string_view verb, int error_number) {
    ::unlink(temporary.c_str());
    return io_error(verb, path, error_number);
  };
  Descriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return io_error("create", path, errno);
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = ::write(fd.get(), contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("write", errno);
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return fail("write", errno);
  if (fd.close_now() != 0) return fail("write", errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename to", errno);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return sync_path(folder);
}

}  // namespace neap
