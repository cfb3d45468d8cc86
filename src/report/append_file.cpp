#include "report/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
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
  AppendFile out(path);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  out.folder_ = Descriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (out.folder_.get() < 0) return io_error("open", folder, errno);
  NEAP_TRY(out.open_file());
  return out;
}

Status AppendFile::open_file() {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  Descriptor file(::openat(folder_.get(), path_.filename().c_str(), kFlags, 0644));
  if (file.get() < 0) return io_error("open", path_, errno);
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) return io_error("append to", path_, errno);
  file_ = std::move(file);
  size_ = static_cast<std::uint64_t>(size);
  return {};
}

// Opens the file with this name in the folder again, unless it is the open one.
Status AppendFile::follow() {
  struct stat ours {};
  struct stat there {};
  struct stat folder {};
  if (::fstat(file_.get(), &ours) != 0 || ::fstat(folder_.get(), &folder) != 0) return {};
  const bool exists =
      ::fstatat(folder_.get(), path_.filename().c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0;
  if (exists && (there.st_ino == ours.st_ino || S_ISLNK(there.st_mode))) return {};
  if (folder.st_nlink == 0) return {};  // removed with its folder, which the run notices
  NEAP_TRY(open_file());
  log::warn(format("{} was {}; it is written {}", path_.string(), exists ? "replaced" : "removed",
                   exists ? "where the new one ends" : "anew from here"));
  return {};
}

Status AppendFile::write_now(std::string_view record) {
  std::size_t done = 0;
  while (done < record.size()) {
    const ssize_t n = ::write(file_.get(), record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      // Remove the incomplete record, so that the next one does not follow it. If even that fails,
      // readers still drop it.
      const bool cut = done == 0 || ::ftruncate(file_.get(), static_cast<off_t>(size_)) == 0;
      if (!cut) size_ += done;
      return io_error("write", path_, reason);
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += record.size();
  return {};
}

Status AppendFile::write(std::string_view record) {
  NEAP_TRY(follow());
  if (!kept_.empty()) {
    NEAP_TRY(write_now(kept_));
    kept_.clear();
    log::info(format("{}: the records that were kept are written", path_.string()));
  }
  return write_now(record);
}

Status AppendFile::write_or_keep(std::string_view record) {
  Status written = write(record);
  if (written.ok()) return {};
  if (kept_.size() + record.size() > kMostKept) return written;
  if (kept_.empty())
    log::warn(format("{}. Records are kept in memory and tried again", written.message()));
  kept_ += record;
  return {};
}

Status AppendFile::sync() {
  NEAP_TRY(write({}));
  if (::fsync(file_.get()) != 0 && errno != EINVAL) return io_error("sync", path_, errno);
  return {};
}

void warn_of_torn_line(std::string_view where, std::size_t bytes) {
  log::warn(format("{}: the last line is incomplete and left out ({} bytes)", where, bytes));
}

}  // namespace neap::report
