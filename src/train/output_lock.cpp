#include "train/output_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/status.h"

namespace neap::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "train.lock";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

// "HOST PID", which the holder writes once it has the lock.
std::string read_holder(int file) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(file, text.data(), text.size() - 1, 0);
  std::string holder = size > 0 ? std::string(text.data()) : std::string();
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  const auto space = holder.rfind(' ');
  if (space == std::string::npos) return {};
  return format("process {} on {}", holder.substr(space + 1), holder.substr(0, space));
}

Error refusal(const fs::path& folder, int file) {
  // A holder that has just taken the lock needs a moment to write its name.
  std::string holder = read_holder(file);
  for (int i = 0; i < 20 && holder.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    holder = read_holder(file);
  }
  return {ErrorCode::kBusy,
          format("{} is in use by {}. Wait for that run or stop it, or set "
                 "trainer.default_local_dir to another folder",
                 folder.string(), holder.empty() ? "another neap train" : holder)};
}

Error io_error(const char* what, const fs::path& path) {
  return {ErrorCode::kIo, format("Cannot {} {}: {}", what, path.string(), std::strerror(errno))};
}

}  // namespace

OutputLock::OutputLock(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, format("Cannot create {}: {}", folder.string(), error.message()));
  }
  const fs::path path = folder / kFile;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) throw io_error("open", path);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file, F_OFD_SETLK, &whole) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      const Error busy = refusal(folder, file);
      ::close(file);
      throw busy;
    }
    log::warn(format("{} cannot be locked ({}): a second run in this folder would not be noticed",
                     path.string(), std::strerror(errno)));
    ::close(file);
    return;
  }
  file_ = file;
  const std::string name = format("{} {}\n", host_name(), ::getpid());
  if (::ftruncate(file_, 0) != 0 ||
      ::pwrite(file_, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    const Error failed = io_error("write", path);
    ::close(file_);
    throw failed;
  }
}

OutputLock::~OutputLock() {
  if (file_ < 0) return;
  // The next holder's name must not be taken for ours. A failure is harmless.
  (void)!::ftruncate(file_, 0);
  ::close(file_);
}

}  // namespace neap::train
