// Reads whole files and writes files safely against crashes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/read_limits.h"
#include "base/status.h"

namespace neap {

/// Reads the whole file. Fails with the path and the system's reason. A file over `limits.file`
/// fails before it is read.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path,
                                            const ReadLimits& limits);
/// For files of the system and of this program.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path,
                                            Bytes limit = Bytes(1ull << 34));

/// A new file next to `path` with an unpredictable, unique name, so that writers of `path` in other
/// processes or threads do not share it. The destructor removes it unless it was renamed.
class TemporaryFile {
 public:
  [[nodiscard]] static Result<TemporaryFile> create(const std::filesystem::path& path);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  /// Descriptor, open for reading and writing.
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Renames the file to `path`. With `sync`, contents and name are on disk when this returns.
  [[nodiscard]] Status commit(bool sync);

 private:
  TemporaryFile(std::filesystem::path target, std::filesystem::path path, int fd);
  std::filesystem::path target_, path_;
  int fd_ = -1;
};
/// Removes temporary files that killed processes left in `folder`. The caller ensures that no
/// process writes in it.
void remove_temporary_files(const std::filesystem::path& folder);

/// Writes `contents` to a temporary file in the same folder, fsyncs it and renames it. Readers see
/// either the old file or the new one. On any failure, including a full disk, the temporary file is
/// removed and the old file is unchanged.
[[nodiscard]] Status write_file_atomic(const std::filesystem::path& path,
                                       std::string_view contents);

/// Calls fsync on a file or folder, so that a rename inside it survives a power failure.
[[nodiscard]] Status sync_path(const std::filesystem::path& path);

/// The folder `neap` in XDG_CACHE_HOME, else in ~/.cache; it may not exist. kNotFound if neither is
/// known.
[[nodiscard]] Result<std::filesystem::path> user_cache_folder();

/// TMPDIR, else /tmp.
[[nodiscard]] std::string temporary_folder();

/// Text of an errno value for messages, such as "No space left on device".
[[nodiscard]] std::string system_reason(int error_number);

}  // namespace neap
