// Memory of a tag that is offloaded to a file. Ranges are read into host memory and written back
// while other work runs.
//
// Model     One unnamed file, whose space is reserved when the storage is made. The file vanishes
//           with the storage or the process. Threads of a DiskLane read and write ranges with
//           direct I/O, several pieces at once. Code that loads or saves maps the whole file at one
//           address through the page cache. Call settle() between these two uses.
//
// Threads   one thread makes, settles and destroys. Any thread may read and write ranges that do
//           not overlap.
//
// Failure   kIo with the system's reason. make() fails on a full disk. If the disk cannot be read,
//           touching data() ends the process with SIGBUS.
//
// Cost      making: reserving the file's space. Host memory: only the page cache, which the system
//           can reclaim.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_file.h"
#include "arena/disk_workers.h"

namespace neap::arena {

struct Tag;

class DiskStorage {
 public:
  /// Makes a file under Options::disk_folder. Contents are zero. `arena` outlives the storage.
  [[nodiscard]] static Result<std::unique_ptr<DiskStorage>> make(Arena& arena, std::string_view tag,
                                                                 Bytes size);
  ~DiskStorage();
  DiskStorage(const DiskStorage&) = delete;
  DiskStorage& operator=(const DiskStorage&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }
  /// Makes writes at data() visible in the file. No range may be read or written meanwhile.
  [[nodiscard]] Status settle() const;
  [[nodiscard]] const DiskFile& file() const { return *file_; }

 private:
  DiskStorage(Arena& arena, Tag& tag, std::shared_ptr<DiskFile> file, std::byte* data, Bytes size);
  Arena& arena_;
  Tag& tag_;
  std::shared_ptr<DiskFile> file_;
  std::byte* data_;
  Bytes size_;
};

/// `size` bytes from `offset` of a file, and their host memory. The memory has the same offset
/// within a page as the file range.
struct DiskRange {
  const DiskFile* file = nullptr;
  Bytes offset;
  std::byte* memory = nullptr;
  Bytes size;
};

/// Reads and writes ranges on threads of its own.
///
/// Threads   one at a time.
class DiskLane {
 public:
  /// Transfers that were started together.
  class Batch {
   public:
    /// Blocks until all transfers have ended and returns the first failure. Later calls succeed.
    [[nodiscard]] Status wait();

   private:
    friend class DiskLane;
    std::vector<std::future<Status>> pieces_;
  };
  /// Ranges and memory must stay valid until wait() returns. A read overwrites whole pages of the
  /// memory.
  [[nodiscard]] Batch read(std::span<const DiskRange> ranges);
  [[nodiscard]] Batch write(std::span<const DiskRange> ranges);

 private:
  template <class Transfer>
  Batch begin(std::span<const DiskRange> ranges, const Transfer& transfer);
  std::optional<DiskWorkers> workers_;  // created with the first transfer
};

}  // namespace neap::arena
