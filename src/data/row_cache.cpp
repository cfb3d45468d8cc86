#include "data/row_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "data/content_hash.h"

namespace neap::data {
namespace fs = std::filesystem;
namespace {

bool is_same_file(int fd, const fs::path& path) {
  struct stat ours {};
  struct stat there {};
  return ::fstat(fd, &ours) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

// Held until the object is destroyed.
class FileLock {
 public:
  static Result<std::unique_ptr<FileLock>> take(const fs::path& file) {
    while (true) {
      std::unique_ptr<FileLock> out(new FileLock);
      out->fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
      if (out->fd_ < 0) {
        return Status(
            ErrorCode::kIo,
            format("Cannot create {}: {}; data.cache_dir names the folder of encoded rows",
                   file.string(), system_reason(errno)));
      }
      out->wait(file);
      // Otherwise bound_cache of another process has removed the file: try again.
      if (is_same_file(out->fd_, file)) return out;
    }
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  FileLock() = default;
  void wait(const fs::path& file) const {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno == EWOULDBLOCK) {
      log::info(format("waits for another process, which holds {}", file.string()));
      while (::flock(fd_, LOCK_EX) != 0)
        if (errno != EINTR) break;
      return;
    }
    log::warn(format("{} cannot be locked: {}; two processes may encode the same rows",
                     file.string(), system_reason(errno)));
  }
  int fd_ = -1;
};

// Removes the file unless a process has locked it. On a file system without locks it stays.
void remove_unused(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(file.c_str());
  ::close(fd);
}

struct CachedFile {
  fs::path path;
  std::uint64_t bytes = 0;
  std::time_t used = 0;
};

// Files of the folder whose names begin with a hash.
std::vector<CachedFile> cached_files(const fs::path& folder) {
  std::vector<CachedFile> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (name.find_first_not_of("0123456789abcdef") != kHashDigits ||
        ::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode))
      continue;
    out.push_back({it->path(), static_cast<std::uint64_t>(info.st_size), info.st_atim.tv_sec});
  }
  return out;
}

void bound_cache(const fs::path& folder, const std::string& made, Bytes limit) {
  constexpr std::time_t kOldSeconds = 90L * 24 * 3600;
  const std::time_t now = std::time(nullptr);
  std::vector<CachedFile> rows;
  std::uint64_t sum = 0;
  for (CachedFile& file : cached_files(folder)) {
    if (file.path.extension() == ".rows") {
      sum += file.bytes;
      if (file.path.filename() != made) rows.push_back(std::move(file));
    } else if (now - file.used > kOldSeconds) {
      remove_unused(file.path);
    }
  }
  if (limit.is_zero()) return;
  std::sort(rows.begin(), rows.end(),
            [](const CachedFile& a, const CachedFile& b) { return a.used < b.used; });
  for (const CachedFile& file : rows) {
    if (Bytes(sum) <= limit) return;
    remove_unused(file.path);
    std::error_code error;
    if (fs::exists(file.path, error)) continue;
    sum -= file.bytes;
    log::info(format("removed {} ({}): encoded rows are kept up to data.cache_limit {}",
                     file.path.string(), Bytes(file.bytes), limit));
  }
}

void remove_leftovers(const fs::path& folder, const std::string& prefix) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(prefix)) fs::remove(it->path(), ignored);
  }
}

}  // namespace

Result<fs::path> make_cache_folder(const fs::path& folder) {
  fs::path out = folder;
  if (out.empty()) {
    NEAP_TRY_ASSIGN(const fs::path user, user_cache_folder());
    out = user / "data";
  }
  std::error_code error;
  fs::create_directories(out, error);
  if (!error) return out;
  return Status(ErrorCode::kIo,
                format("Cannot create {}: {}; data.cache_dir names the folder of encoded rows",
                       out.string(), error.message()));
}

Result<std::string> content_hash(const fs::path& folder, const fs::path& file) {
  NEAP_TRY_ASSIGN(const FileVersion before, version_of(file));
  const bool fresh = before.is_fresh();
  const fs::path kept = folder / (hash_of(before.text()) + ".content");
  const Result<std::string> known = read_file(kept, 1_KiB);
  if (known.ok() && known->size() == kHashDigits && !fresh) return *known;
  NEAP_TRY_ASSIGN(std::string hash, hash_of_file(file));
  NEAP_TRY(check_unchanged(file, before));
  // If the hash cannot be stored, the next start is slower. Nothing else depends on it.
  if (!fresh)
    if (const Status status = write_file_atomic(kept, hash); !status.ok())
      log::debug(status.message());
  return hash;
}

Result<RowStore> cached_rows(const fs::path& folder, const std::string& key, Bytes limit,
                             const std::function<Result<RowStore>(RowWriter&)>& make) {
  NEAP_TRY_ASSIGN(const auto lock, FileLock::take(folder / (key + ".lock")));
  const std::string name = key + ".rows";
  Result<RowStore> found = RowStore::open(folder / name, key);
  if (found.ok()) {
    // bound_cache selects by the time of last use, which a file system may not update on reads.
    const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    (void)::utimensat(AT_FDCWD, (folder / name).c_str(), times, AT_SYMLINK_NOFOLLOW);
    return found;
  }
  if (found.status().code() != ErrorCode::kNotFound) {
    log::warn(format("{}: it is made anew", found.status().message()));
    std::error_code error;
    fs::remove(folder / name, error);
  }
  remove_leftovers(folder, name + ".tmp-");
  NEAP_TRY_ASSIGN(auto writer, RowFileWriter::create(folder / name, key));
  Result<RowStore> made = make(*writer);
  if (made.ok()) bound_cache(folder, name, limit);
  return made;
}

}  // namespace neap::data
