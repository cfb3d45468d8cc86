// Files for backups, with several direct reads and writes in flight that bypass the page cache.
//
// Model     By default each pause makes one unnamed file and reserves its space before copying. The
//           file vanishes with its last region or with the process. With Options::named_disk_files
//           each region has one named file, which it keeps for later pauses.
//
// A DiskFile can also wrap an external file, which is only read.
//
// Threads   a DiskFile belongs to one operation, whose threads read and write its ranges.
//
// Failure   kIo with the system's reason. make() fails on a full disk before anything is copied. A
//           failure of an external file names its path; kCorrupt if the file has become shorter.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/file_version.h"
#include "base/status.h"

namespace neap::arena {

class DiskFile {
 public:
  /// A named file is locked by this process. The first one made in a folder removes the files that
  /// killed processes left there.
  enum class Naming { kUnnamed, kNamed };
  /// Makes a file of `size` bytes and reserves its space. `folder` empty: the system's temporary
  /// folder.
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> make(const std::string& folder, Bytes size,
                                                              Naming naming = Naming::kUnnamed);
  /// Wraps the external file of an open descriptor. The caller keeps the descriptor; `path` names
  /// the file in messages. The file stays readable after its name is removed, and is never written.
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> of_other(int descriptor, std::string path);
  /// For an external file: fails if it was written or resized since of_other().
  [[nodiscard]] Status unchanged() const;
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  Status write(Bytes offset, const std::byte* from, Bytes size) const;
  Status read(Bytes offset, std::byte* to, Bytes size) const;
  /// As write() and read(), for a range that need not begin or end at page borders. Memory must
  /// have the same offset within a page as the range. A read overwrites whole pages of memory at
  /// both ends. A write leaves the other bytes of these pages unchanged. The files of a DiskStorage
  /// have whole pages.
  Status write_part(Bytes offset, const std::byte* from, Bytes size) const;
  Status read_part(Bytes offset, std::byte* to, Bytes size) const;
  static constexpr Bytes kPage = 4_KiB;
  /// Maps the file's first bytes through the page cache until unmapped.
  [[nodiscard]] Result<std::byte*> map(Bytes size) const;
  /// Writes changes made through the mapping back to the file.
  [[nodiscard]] Status write_back() const;
  [[nodiscard]] Bytes size() const { return size_; }
  /// Removes the name, if any. Contents stay until the file is closed.
  void unlink();

 private:
  DiskFile(int descriptor, std::string where, Bytes size)
      : descriptor_(descriptor), where_(std::move(where)), size_(size) {}
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> open_unnamed(std::string folder,
                                                                      Bytes size);
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> open_named(std::string folder, Bytes size);
  [[nodiscard]] Status failure(std::string_view what, int error) const;
  /// Reads at least `least` of `size` bytes; the file may end within the range.
  Status read_to_end(Bytes offset, std::byte* to, Bytes size, Bytes least) const;
  void stop_direct() const;
  Status write_to(int descriptor, Bytes offset, const std::byte* from, Bytes size) const;
  /// A descriptor for pages that are partly written; negative if the system provides none.
  [[nodiscard]] int through_cache() const;
  /// Zero, or the system's reason.
  [[nodiscard]] int take_space(off_t length) const;

  int descriptor_;
  std::string where_;
  Bytes size_;
  std::string name_;                    ///< path of a named file
  std::optional<FileVersion> version_;  ///< of an external file, when it was opened
  mutable std::once_flag opened_cached_;
  mutable int cached_ = -1;
};

}  // namespace neap::arena
