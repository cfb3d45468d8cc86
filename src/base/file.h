// Whole-file reading and crash-safe writing.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace neap {

/// The whole file. Fails with the path and the system's reason; over `limit` it fails before
/// reading.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path,
                                            Bytes limit = Bytes(1ull << 34));

/// A new file next to `path`, under a name that nobody can foresee or share: another process or thread
/// that writes `path` has its own. Removed on destruction, unless it was renamed.
class TemporaryFile {
 public:
  [[nodiscard]] static Result<TemporaryFile> create(const std::filesystem::path& path);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  /// Open for reading and writing.
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Puts it in the place of `path`. With `sync` both the contents and the name are on the disk then.
  [[nodiscard]] Status commit(bool sync);

 private:
  TemporaryFile(std::filesystem::path target, std::filesystem::path path, int fd);
  std::filesystem::path target_, path_;
  int fd_ = -1;
};
/// Removes temporary files that killed processes left in `folder`; the caller knows that nobody writes
/// in it.
void remove_temporary_files(const std::filesystem::path& folder);

/// Writes `contents` to a temporary file in the same folder, fsyncs and renames it: readers see the
/// old file or the new one. On any failure, a full disk included, the temporary file is removed and
/// the old file is unchanged.
[[nodiscard]] Status write_file_atomic(const std::filesystem::path& path,
                                       std::string_view contents);

/// fsync of a file or folder, so that a rename inside it survives a power cut.
[[nodiscard]] Status sync_path(const std::filesystem::path& path);

/// `neap` in XDG_CACHE_HOME, else in ~/.cache; it may not exist. kNotFound where neither is known.
[[nodiscard]] Result<std::filesystem::path> user_cache_folder();

/// "No space left on device" and the like, for messages.
[[nodiscard]] std::string system_reason(int error_number);

}  // namespace neap
