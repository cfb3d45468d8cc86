#include "train/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/open_folder.h"
#include "base/status.h"

namespace neap::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = "train.lock";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

// "HOST PID", as written by the holder once it has the lock.
std::string read_holder(int file) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(file, text.data(), text.size() - 1, 0);
  std::string holder = size > 0 ? std::string(text.data()) : std::string();
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  const auto space = holder.rfind(' ');
  if (space == std::string::npos) return {};
  return format("process {} on {}", holder.substr(space + 1), holder.substr(0, space));
}

Error refusal(const fs::path& folder) {
  // Retries, because a new holder needs a moment to write its name.
  std::string holder;
  const int file = ::open((folder / kLockFile).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  for (int i = 0; i < 20 && file >= 0 && (holder = read_holder(file)).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (file >= 0) ::close(file);
  return {ErrorCode::kBusy,
          format("{} is in use by {}. Wait for that run or stop it, or set "
                 "trainer.default_local_dir to another folder",
                 folder.string(), holder.empty() ? "another neap train" : holder)};
}

Error io_error(const char* what, const fs::path& path) {
  return {ErrorCode::kIo, format("Cannot {} {}: {}", what, path.string(), std::strerror(errno))};
}

bool is_same(int descriptor, const fs::path& path) {
  struct stat ours {};
  struct stat there {};
  return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

}  // namespace

OutputLock::OutputLock(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder_.string(), error.message()));
  }
  directory_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0) throw io_error("open", folder_);
  // For other failures, the lock of the file gives a better message.
  const bool taken = ::flock(directory_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  try {
    if (taken || !lock_file()) throw refusal(folder_);
  } catch (...) {
    ::close(directory_);
    throw;
  }
}

bool OutputLock::lock_file() {
  const fs::path path = folder_ / kLockFile;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) throw io_error("open", path);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file, F_OFD_SETLK, &whole) != 0) {
    const int reason = errno;
    ::close(file);
    if (reason == EAGAIN || reason == EACCES) return false;
    log::warn(format("{} cannot be locked ({}): a second run in this folder would not be noticed",
                     path.string(), std::strerror(reason)));
    return true;
  }
  const std::string name = format("{} {}\n", host_name(), ::getpid());
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    const Error failed = io_error("write", path);
    ::close(file);
    throw failed;
  }
  if (file_ >= 0) ::close(file_);
  file_ = file;
  return true;
}

std::optional<OutputLock::Change> OutputLock::check() {
  if (!is_same(directory_, folder_)) {
    fs::path now = moved_to();
    const std::string what = now.empty() ? "was removed" : format("was moved to {}", now.string());
    if (!now.empty()) folder_ = now;
    return Change{what, std::move(now)};
  }
  if (file_ < 0 || is_same(file_, folder_ / kLockFile)) return std::nullopt;
  if (lock_file()) {
    log::warn(format("{} was removed while a run works in {}; it is there again", kLockFile,
                     folder_.string()));
    return std::nullopt;
  }
  return Change{"was taken by another run", {}};
}

fs::path OutputLock::stable_path() const {
  return path_through(directory_, folder_);
}

fs::path OutputLock::moved_to() const {
  std::error_code error;
  fs::path now = fs::read_symlink(format("/proc/self/fd/{}", directory_), error);
  return !error && is_same(directory_, now) ? now : fs::path();
}

OutputLock::~OutputLock() {
  // Erases the name, so that it is not taken for the next holder's. A failure is harmless.
  if (file_ >= 0) {
    (void)!::ftruncate(file_, 0);
    ::close(file_);
  }
  ::close(directory_);
}

}  // namespace neap::train
