#include "data/content_hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/open_file.h"

namespace neap::data {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
// File systems store times at least this precisely.
constexpr std::int64_t kFreshSeconds = 2;

Status failure(std::string_view verb, const std::filesystem::path& file, int error) {
  return {error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          format("Cannot {} {}: {}", verb, file.string(), system_reason(error))};
}

}  // namespace

Result<std::string> hash_of_file(const std::filesystem::path& file) {
  NEAP_TRY_ASSIGN(const Descriptor opened, open_regular_file(file));
  const int fd = opened.get();
  NEAP_TRY(check_holes(fd, file));
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  RunningHash hash;
  std::vector<char> chunk(kChunk);
  while (true) {
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("read", file, errno);
    if (n == 0) return hash.text();
    hash.add({chunk.data(), static_cast<std::size_t>(n)});
  }
}

Result<FileStamp> stamp_of(const std::filesystem::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return failure("stat", file, errno);
  FileStamp out;
  out.text =
      format("{} {} {} {}.{} {}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
             info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
  out.fresh = std::time(nullptr) - info.st_ctim.tv_sec < kFreshSeconds;
  return out;
}

Status check_unchanged(const std::filesystem::path& file, const FileStamp& stamp) {
  NEAP_TRY_ASSIGN(const FileStamp now, stamp_of(file));
  if (now.text == stamp.text) return {};
  return {ErrorCode::kBusy, format("{} changed while it was read", file.string())};
}

}  // namespace neap::data
