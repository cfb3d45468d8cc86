#include "data/row_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "data/content_hash.h"

namespace neap::data {
namespace fs = std::filesystem;
namespace {

// Held until it goes.
class FileLock {
 public:
  static Result<std::unique_ptr<FileLock>> take(const fs::path& file) {
    std::unique_ptr<FileLock> out(new FileLock);
    out->fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (out->fd_ < 0) {
      return Status(ErrorCode::kIo,
                    format("Cannot create {}: {}; data.cache_dir names the folder of encoded rows",
                           file.string(), system_reason(errno)));
    }
    if (::flock(out->fd_, LOCK_EX | LOCK_NB) == 0) return out;
    if (errno == EWOULDBLOCK) {
      log::info(format("waits for another process, which holds {}", file.string()));
      while (::flock(out->fd_, LOCK_EX) != 0)
        if (errno != EINTR) break;
      return out;
    }
    log::warn(format("{} cannot be locked: {}; two processes may encode the same rows",
                     file.string(), system_reason(errno)));
    return out;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  FileLock() = default;
  int fd_ = -1;
};

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
  NEAP_TRY_ASSIGN(const FileStamp stamp, stamp_of(file));
  const fs::path kept = folder / (hash_of(stamp.text) + ".content");
  const Result<std::string> known = read_file(kept, 1_KiB);
  if (known.ok() && known->size() == kHashDigits && !stamp.fresh) return *known;
  NEAP_TRY_ASSIGN(std::string hash, hash_of_file(file));
  NEAP_TRY(check_unchanged(file, stamp));
  // A file that cannot be kept costs time at the next start, which is all.
  if (!stamp.fresh)
    if (const Status status = write_file_atomic(kept, hash); !status.ok())
      log::debug(status.message());
  return hash;
}

Result<RowStore> cached_rows(const fs::path& folder, const std::string& key,
                             const std::function<Result<RowStore>(RowWriter&)>& make) {
  NEAP_TRY_ASSIGN(const auto lock, FileLock::take(folder / (key + ".lock")));
  const std::string name = key + ".rows";
  Result<RowStore> found = RowStore::open(folder / name, key);
  if (found.ok()) return found;
  if (found.status().code() != ErrorCode::kNotFound) {
    log::warn(format("{}: it is made anew", found.status().message()));
    std::error_code error;
    fs::remove(folder / name, error);
  }
  remove_leftovers(folder, name + ".tmp-");
  NEAP_TRY_ASSIGN(auto writer, RowFileWriter::create(folder / name, key));
  return make(*writer);
}

}  // namespace neap::data
