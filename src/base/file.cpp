#include "base/file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/open_file.h"

namespace neap {
namespace {

Status io_error(std::string_view verb, const std::filesystem::path& path, int error_number) {
  return {error_number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          "Cannot " + std::string(verb) + " " + path.string() + ": " + system_reason(error_number)};
}

// Part of the names of temporary files: NAME.tmp-PID-DIGITS, with random digits.
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr std::size_t kRandomDigits = 16;

bool is_temporary(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  name.remove_prefix(mark + kTemporaryMark.size());
  const std::size_t dash = name.find('-');
  if (dash == 0 || dash == std::string_view::npos) return false;
  const std::string_view random = name.substr(dash + 1);
  return name.find_first_not_of("0123456789") == dash && random.size() == kRandomDigits &&
         random.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string system_reason(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

Result<std::string> read_file(const std::filesystem::path& path, Bytes limit) {
  return read_file(
      path,
      {.what = "this file", .file = limit, .advice = "check that it is the file that is meant"});
}

Result<std::string> read_file(const std::filesystem::path& path, const ReadLimits& limits) {
  NEAP_TRY_ASSIGN(const Descriptor fd, open_file(path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("stat", path, errno);
  if (S_ISDIR(info.st_mode)) return io_error("read", path, EISDIR);
  if (info.st_size > 0 && Bytes(static_cast<std::uint64_t>(info.st_size)) > limits.file)
    return over_limit(path.string(), limits, Excess::kFile);
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
    if (Bytes(have) > limits.file) return over_limit(path.string(), limits, Excess::kFile);
  }
  contents.resize(have);
  return contents;
}

Result<std::filesystem::path> user_cache_folder() {
  // The base directory specification rejects relative paths.
  const auto absolute = [](const char* variable) {
    const char* value = std::getenv(variable);
    const std::filesystem::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "neap";
  if (const auto home = absolute("HOME"); !home.empty()) return home / ".cache" / "neap";
  return Status(ErrorCode::kNotFound, "Neither XDG_CACHE_HOME nor HOME names a folder");
}

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

Status sync_path(const std::filesystem::path& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_error("open", path, errno);
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return io_error("sync", path, errno);
  return {};
}

Result<TemporaryFile> TemporaryFile::create(const std::filesystem::path& path) {
  constexpr int kAttempts = 100;
  for (int i = 0; i < kAttempts; ++i) {
    std::uint64_t random = 0;
    // getrandom blocks only during system start.
    if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) continue;
    std::filesystem::path temporary =
        path.string() + format("{}{}-{:016x}", kTemporaryMark, ::getpid(), random);
    const int fd =
        ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0) return TemporaryFile(path, std::move(temporary), fd);
    if (errno != EEXIST && errno != EINTR) return io_error("create", path, errno);
  }
  return io_error("create", path, EEXIST);
}

TemporaryFile::TemporaryFile(std::filesystem::path target, std::filesystem::path path, int fd)
    : target_(std::move(target)), path_(std::move(path)), fd_(fd) {}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)) {}

TemporaryFile& TemporaryFile::operator=(TemporaryFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

TemporaryFile::~TemporaryFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(path_.c_str());
}

Status TemporaryFile::commit(bool sync) {
  if (sync && ::fsync(fd_) != 0 && errno != EINVAL) return io_error("write", target_, errno);
  // A file system may report a full disk only at this point.
  Status status;
  if (::close(std::exchange(fd_, -1)) != 0) {
    status = io_error("write", target_, errno);
  } else if (::rename(path_.c_str(), target_.c_str()) != 0) {
    status = io_error("rename to", target_, errno);
  }
  if (!status.ok()) {
    ::unlink(path_.c_str());
    return status;
  }
  if (!sync) return {};
  return sync_path(target_.has_parent_path() ? target_.parent_path() : ".");
}

void remove_temporary_files(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (is_temporary(it->path().filename().string()) && !it->is_directory(ignored))
      std::filesystem::remove(it->path(), ignored);
  }
}

Status write_file_atomic(const std::filesystem::path& path, std::string_view contents) {
  NEAP_TRY_ASSIGN(TemporaryFile file, TemporaryFile::create(path));
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = ::write(file.fd(), contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("write", path, errno);
    done += static_cast<std::size_t>(n);
  }
  return file.commit(/*sync=*/true);
}

}  // namespace neap
