#include "data/content_hash.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/open_file.h"

namespace neap::data {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

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
    if (n < 0)
      return Status(ErrorCode::kIo,
                    format("Cannot read {}: {}", file.string(), system_reason(errno)));
    if (n == 0) return hash.text();
    hash.add({chunk.data(), static_cast<std::size_t>(n)});
  }
}

Status check_unchanged(const std::filesystem::path& file, const FileVersion& before) {
  NEAP_TRY_ASSIGN(const FileVersion now, version_of(file));
  if (now == before) return {};
  return {ErrorCode::kBusy, format("{} changed while it was read", file.string())};
}

}  // namespace neap::data
