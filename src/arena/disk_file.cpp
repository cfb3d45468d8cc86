#include "arena/disk_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/format.h"

namespace neap::arena {
namespace {

constexpr std::string_view kPrefix = "neap-backup-";

std::string name_template(const std::string& folder) {
  return format("{}/{}XXXXXX", folder, kPrefix);
}

Status cannot_make(const std::string& folder, int error) {
  return Status::driver(ErrorCode::kIo,
                        format("cannot make a backup file in {}: {}", folder, system_reason(error)),
                        error);
}

/// Removes named files whose process has ended: the kernel has released their locks.
void remove_abandoned(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string path = entries->path();
    if (!entries->path().filename().string().starts_with(kPrefix)) continue;
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
    ::close(fd);
  }
}

/// Removes them once per folder.
void remove_abandoned_once(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (known.insert(folder).second) remove_abandoned(folder);
}

}  // namespace

Result<std::shared_ptr<DiskFile>> DiskFile::open_unnamed(std::string folder, Bytes size) {
  int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  if (fd < 0) fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    // The file system has no unnamed files: make a named one and unlink it at once.
    std::string name = name_template(folder);
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) return cannot_make(folder, errno);
  return std::shared_ptr<DiskFile>(new DiskFile(fd, std::move(folder), size));
}

Result<std::shared_ptr<DiskFile>> DiskFile::open_named(std::string folder, Bytes size) {
  std::error_code ignored;  // the open below reports the failure
  std::filesystem::create_directories(folder, ignored);
  remove_abandoned_once(folder);
  for (;;) {
    std::string name = name_template(folder);
    const int fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd < 0) return cannot_make(folder, errno);
    // Another process may be removing abandoned files. It may have found this file before it was
    // locked.
    struct stat status {};
    const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (!locked || (::fstat(fd, &status) == 0 && status.st_nlink == 0)) {
      ::close(fd);
      continue;
    }
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_DIRECT);  // if the file system can
    std::shared_ptr<DiskFile> file(new DiskFile(fd, std::move(folder), size));
    file->name_ = std::move(name);
    return file;
  }
}

Result<std::shared_ptr<DiskFile>> DiskFile::make(const std::string& folder, Bytes size,
                                                 Naming naming) {
  const std::string where = folder.empty() ? temporary_folder() : folder;
  NEAP_TRY_ASSIGN(auto file,
                  naming == Naming::kNamed ? open_named(where, size) : open_unnamed(where, size));
  const int error = file->take_space(static_cast<off_t>(size.count()));
  if (error != 0)
    return Status::driver(
        ErrorCode::kIo, format("a backup file of {} in {}: {}", size, where, system_reason(error)),
        error);
  return file;
}

namespace {

Status cannot_read(const std::string& path, int error) {
  return Status::driver(ErrorCode::kIo, format("cannot read {}: {}", path, system_reason(error)),
                        error);
}

}  // namespace

Result<std::shared_ptr<DiskFile>> DiskFile::of_other(int descriptor, std::string path) {
  NEAP_TRY_ASSIGN(const FileVersion version, version_of(descriptor, path));
  // Opens the same file again with other flags, whatever its name is now.
  const std::string own = format("/proc/self/fd/{}", descriptor);
  int fd = ::open(own.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0) fd = ::open(own.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fd = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return cannot_read(path, errno);
  std::shared_ptr<DiskFile> file(new DiskFile(fd, std::move(path), Bytes(version.size)));
  file->version_ = version;
  return file;
}

Status DiskFile::unchanged() const {
  NEAP_TRY_ASSIGN(const FileVersion now, version_of(descriptor_, where_));
  if (now.has_contents_of(*version_)) return {};
  return {ErrorCode::kCorrupt, format("{} was changed while it was in use", where_)};
}

DiskFile::~DiskFile() {
  unlink();
  if (cached_ >= 0) ::close(cached_);
  ::close(descriptor_);
}

void DiskFile::unlink() {
  if (!name_.empty()) ::unlink(name_.c_str());
  name_.clear();
}

int DiskFile::take_space(off_t length) const {
  // Take space in pieces: some file systems start the whole call again after a signal.
  constexpr off_t kTakenAtOnce = 64 << 20;
  int refused = 0;
  for (off_t at = 0; at < length && refused == 0;) {
    const off_t piece = std::min(kTakenAtOnce, length - at);
    if (::fallocate(descriptor_, 0, at, piece) == 0) {
      at += piece;
    } else if (errno != EINTR) {
      refused = errno;
    }
  }
  if (refused != EOPNOTSUPP) return refused;
  // posix_fallocate may fall back to single-byte writes, which direct I/O does not allow.
  const int flags = ::fcntl(descriptor_, F_GETFL);
  stop_direct();
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor_, 0, length);
  if (flags >= 0) ::fcntl(descriptor_, F_SETFL, flags);
  return error;
}

Status DiskFile::failure(std::string_view what, int error) const {
  if (version_) return cannot_read(where_, error);
  return Status::driver(ErrorCode::kIo,
                        format("cannot {} a backup in {}: {}", what, where_, system_reason(error)),
                        error);
}

void DiskFile::stop_direct() const {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags >= 0) ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT);
}

Status DiskFile::write(Bytes offset, const std::byte* from, Bytes size) const {
  return write_to(descriptor_, offset, from, size);
}

Status DiskFile::write_to(int descriptor, Bytes offset, const std::byte* from, Bytes size) const {
  bool refused = false;
  for (Bytes done; done < size;) {
    const ssize_t n = ::pwrite(descriptor, from + done.count(), (size - done).count(),
                               static_cast<off_t>((offset + done).count()));
    if (n > 0) {
      done += Bytes(static_cast<std::uint64_t>(n));
    } else if (n < 0 && errno == EINVAL && !refused) {
      stop_direct();  // the file system accepted the flag but not the write
      refused = true;
    } else if (n == 0 || errno != EINTR) {
      return failure("write", n == 0 ? ENOSPC : errno);
    }
  }
  return {};
}

Status DiskFile::write_part(Bytes offset, const std::byte* from, Bytes size) const {
  const Bytes end = offset + size;
  const Bytes first = round_up(offset, kPage), last = round_down(end, kPage);
  const bool whole = first == offset && last == end;
  const int edges = whole ? descriptor_ : through_cache();
  if (edges < 0) {
    stop_direct();
    return write(offset, from, size);
  }
  if (first >= last) return write_to(edges, offset, from, size);
  NEAP_TRY(write_to(edges, offset, from, first - offset));
  NEAP_TRY(write(first, from + (first - offset).count(), last - first));
  return write_to(edges, last, from + (last - offset).count(), end - last);
}

Status DiskFile::read_part(Bytes offset, std::byte* to, Bytes size) const {
  const Bytes first = round_down(offset, kPage);
  return read_to_end(first, to - (offset - first).count(), round_up(offset + size, kPage) - first,
                     offset + size - first);
}

Result<std::byte*> DiskFile::map(Bytes size) const {
  void* const at =
      ::mmap(nullptr, size.count(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (at == MAP_FAILED) return failure("map", errno);
  return static_cast<std::byte*>(at);
}

Status DiskFile::write_back() const {
  constexpr unsigned kAll =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  int error = 0;
  while (::sync_file_range(descriptor_, 0, 0, kAll) != 0 && (error = errno) == EINTR) {
  }
  return error == 0 || error == EINTR ? Status() : failure("write", error);
}

int DiskFile::through_cache() const {
  std::call_once(opened_cached_, [&] {
    cached_ = ::open(format("/proc/self/fd/{}", descriptor_).c_str(), O_RDWR | O_CLOEXEC);
  });
  return cached_;
}

Status DiskFile::read(Bytes offset, std::byte* to, Bytes size) const {
  return read_to_end(offset, to, size, size);
}

Status DiskFile::read_to_end(Bytes offset, std::byte* to, Bytes size, Bytes least) const {
  bool refused = false;
  for (Bytes done; done < least;) {
    const ssize_t n = ::pread(descriptor_, to + done.count(), (size - done).count(),
                              static_cast<off_t>((offset + done).count()));
    if (n > 0) {
      done += Bytes(static_cast<std::uint64_t>(n));
    } else if (n < 0 && errno == EINVAL && !refused) {
      stop_direct();
      refused = true;
    } else if (n == 0 && version_) {
      return {ErrorCode::kCorrupt,
              format("{} ends at byte {}; it was cut short while it was in use", where_,
                     (offset + done).count())};
    } else if (n == 0 || errno != EINTR) {
      return failure("read", n == 0 ? EIO : errno);
    }
  }
  return {};
}

}  // namespace neap::arena
