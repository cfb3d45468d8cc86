// Files for backups: several direct reads and writes at once that bypass the page cache.
//
// Model     One unnamed file for each pause, its space secured before anything is copied; it
//           vanishes with its last region or with the process. Where Options::named_disk_files asks
//           for it, one named file for each region, which the region keeps for later pauses.
//
//           A DiskFile may also be somebody else's file, which is only read.
//
// Threads   a DiskFile belongs to the operation that moves it, whose threads read and write its ranges.
//
// Failure   kIo with the system's reason. make() finds a full disk, before anything is copied. Of somebody else's file
//           with its name; kCorrupt where it has become shorter.
#pragma once

#include <sys/types.h>

#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::arena {

class DiskFile {
 public:
  /// A named file is locked by this process. Those that a killed process left behind are removed
  /// when the first is made in their folder.
  enum class Naming { kUnnamed, kNamed };
  /// A file of `size` whose space is reserved. `folder` empty: the system's temporary folder.
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> make(const std::string& folder, Bytes size,
                                                              Naming naming = Naming::kUnnamed);
  /// The file behind an open descriptor, which stays the caller's; `path` names it in messages. It stays readable when
  /// its name goes, and is never written.
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> of_other(int descriptor, std::string path);
  /// Of one of somebody else: fails where it was written, or got another size, since of_other().
  [[nodiscard]] Status unchanged() const;
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  Status write(Bytes offset, const std::byte* from, Bytes size) const;
  Status read(Bytes offset, std::byte* to, Bytes size) const;
  /// The same of a range that need not begin and end with pages, where the memory lies in its page as the range does.
  /// A read overwrites the pages that have its first and last byte; a write leaves the rest of them as it is. Those of
  /// an own file are whole.
  Status write_part(Bytes offset, const std::byte* from, Bytes size) const;
  Status read_part(Bytes offset, std::byte* to, Bytes size) const;
  static constexpr Bytes kPage = 4_KiB;
  /// Its first bytes in memory, through the page cache, until unmapped.
  [[nodiscard]] Result<std::byte*> map(Bytes size) const;
  /// What was written there is in the file.
  [[nodiscard]] Status write_back() const;
  [[nodiscard]] Bytes size() const { return size_; }
  /// Removes the name, if any; the contents stay until the file is closed.
  void unlink();

 private:
  DiskFile(int descriptor, std::string where, Bytes size)
      : descriptor_(descriptor), where_(std::move(where)), size_(size) {}
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> open_unnamed(std::string folder,
                                                                      Bytes size);
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> open_named(std::string folder, Bytes size);
  [[nodiscard]] Status failure(std::string_view what, int error) const;
  /// At least `least` bytes of `size`, which the file may end within.
  Status read_to_end(Bytes offset, std::byte* to, Bytes size, Bytes least) const;
  void stop_direct() const;
  Status write_to(int descriptor, Bytes offset, const std::byte* from, Bytes size) const;
  /// A descriptor for pages that are written in part; negative: the system gives none.
  [[nodiscard]] int through_cache() const;
  /// Zero, or the system's reason.
  [[nodiscard]] int take_space(off_t length) const;

  int descriptor_;
  std::string where_;
  Bytes size_;
  std::string name_;  ///< path of a named file
  /// Of somebody else's, what it was: size and time of the last write.
  struct Version {
    off_t size = 0;
    timespec written{};
  };
  std::optional<Version> version_;
  mutable std::once_flag opened_cached_;
  mutable int cached_ = -1;
};

}  // namespace neap::arena
