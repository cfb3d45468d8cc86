// A system that answers as it may: signals, short transfers, full and failing disks, file systems without this or that,
// slow closing. Its calls stand in front of the C library's, in the one file of a program that includes this.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace neap::testing {

/// How the system behaves; reset by every test.
struct System {
  std::atomic<bool> signals{false};  // three of four calls are interrupted
  std::atomic<bool> short_transfers{false};
  std::atomic<bool> no_fallocate{false};
  std::atomic<bool> direct_refused{false};  // at the transfer, not at open
  std::atomic<std::int64_t> room{-1};       // bytes that can be written; -1: no limit
  std::atomic<std::int64_t> reserved{-1};   // most that a file may reserve; -1: no limit
  std::atomic<bool> slow_close{false};
  std::atomic<bool> no_room{false};  // for named files, too
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> was_direct{false};
  /// How often a backup's call met what the test asked for: a test that meets nothing shows nothing.
  std::atomic<int> met{0};
  std::atomic<int> closes_begun{0}, closes_done{0};  // slow ones
  /// The call of so many that fails, from 1; below that none does.
  std::atomic<std::int64_t> failing_write{0}, failing_read{0};
  dev_t folder = 0;
  /// Backups are in this folder's file system.
  void reset(const std::string& path) {
    struct stat status {};
    folder = ::stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
    signals = short_transfers = no_fallocate = direct_refused = slow_close = was_direct = false;
    no_room = false;
    room = reserved = -1;
    met = closes_begun = closes_done = 0;
    failing_write = failing_read = 0;
  }
};
inline System the_system;

inline bool interrupted() {
  if (!the_system.signals || the_system.calls.fetch_add(1) % 4 == 3) return false;
  ++the_system.met;
  return true;
}
// A transfer moves a part.
inline std::size_t shortened(std::size_t size) {
  if (!the_system.short_transfers || size <= 4096) return size;
  ++the_system.met;
  return 4096 + (size / 3 & ~std::size_t{4095});
}
inline bool refuses_direct(int fd) {
  if (!the_system.direct_refused || (::fcntl(fd, F_GETFL) & O_DIRECT) == 0) return false;
  ++the_system.met;
  return true;
}
inline bool is_last(std::atomic<std::int64_t>& count) {
  if (count <= 0 || count.fetch_sub(1) != 1) return false;
  ++the_system.met;
  return true;
}
inline int fail(int error) {
  errno = error;
  return -1;
}
inline bool is_direct(int fd) {
  return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}
inline bool is_backup(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
         status.st_dev == the_system.folder;
}

}  // namespace neap::testing

extern "C" {

int fallocate(int fd, int mode, off_t offset, off_t length) noexcept(false) {
  using namespace neap::testing;
  if (the_system.no_room) return fail(ENOSPC);
  if (is_backup(fd)) {
    if (interrupted()) return fail(EINTR);
    if (the_system.no_fallocate) {
      ++the_system.met;
      return fail(EOPNOTSUPP);
    }
    if (the_system.reserved >= 0 && offset + length > the_system.reserved) return fail(ENOSPC);
  }
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
}

int posix_fallocate(int fd, off_t, off_t length) noexcept(false) {
  using namespace neap::testing;
  // What the library's own does without the system's help: a byte to every block.
  if (is_direct(fd)) return EINVAL;
  return ::ftruncate(fd, length) == 0 ? 0 : errno;
}

ssize_t pwrite(int fd, const void* from, size_t size, off_t offset) {
  using namespace neap::testing;
  if (is_backup(fd)) {
    the_system.was_direct = is_direct(fd);
    if (is_last(the_system.failing_write)) return fail(EIO);
    if (interrupted()) return fail(EINTR);
    if (refuses_direct(fd)) return fail(EINVAL);
    size = shortened(size);
    if (the_system.room >= 0) {
      if (the_system.room == 0) return fail(ENOSPC);
      the_system.room =
          std::max<std::int64_t>(0, the_system.room - static_cast<std::int64_t>(size));
    }
  }
  return ::syscall(SYS_pwrite64, fd, from, size, offset);
}

ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  using namespace neap::testing;
  if (is_backup(fd)) {
    if (is_last(the_system.failing_read)) return fail(EIO);
    if (interrupted()) return fail(EINTR);
    if (refuses_direct(fd)) return fail(EINVAL);
    size = shortened(size);
  }
  return ::syscall(SYS_pread64, fd, to, size, offset);
}

int close(int fd) {
  using namespace neap::testing;
  const bool slow = the_system.slow_close && is_backup(fd);
  if (slow) ++the_system.closes_begun;
  if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  if (slow) ++the_system.closes_done;
  return result;
}

}  // extern "C"
