// Memory of a tag that rests in a file: its contents are there between the phases that use them, and ranges of it come
// to host memory and go back while other work runs.
//
// Model     One unnamed file, whose space is taken when it is made and which vanishes with the storage or the process.
//           Ranges are read and written past the page cache, several pieces at once, by threads of a DiskLane; whoever
//           loads or saves has all of it at one address, through the cache. The two take turns: settle() is between
//           them.
// Threads   one makes, settles and destroys; ranges that do not overlap may be read and written by any.
// Failure   kIo with the system's reason. make() finds a full disk. A disk that cannot be read where data() is touched
//           ends the process with SIGBUS.
// Cost      of making, that of reserving the file's space; no host memory but the page cache's, which the system takes
//           back.
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
  /// In a file under Options::disk_folder. Contents are zero. `arena` outlives the storage.
  [[nodiscard]] static Result<std::unique_ptr<DiskStorage>> make(Arena& arena, std::string_view tag,
                                                                 Bytes size);
  ~DiskStorage();
  DiskStorage(const DiskStorage&) = delete;
  DiskStorage& operator=(const DiskStorage&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }
  /// What was written at data() is in the file. Nobody reads or writes a range meanwhile.
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

/// `size` bytes from `offset` of a file, and where they are in host memory: in a page as they are in the file's.
struct DiskRange {
  const DiskFile* file = nullptr;
  Bytes offset;
  std::byte* memory = nullptr;
  Bytes size;
};

/// Reads and writes of ranges by threads of its own.
///
/// Threads   one at a time.
class DiskLane {
 public:
  /// Transfers that were begun together.
  class Batch {
   public:
    /// Blocks until all have ended; the first failure. Again: success.
    [[nodiscard]] Status wait();

   private:
    friend class DiskLane;
    std::vector<std::future<Status>> pieces_;
  };
  /// Ranges and memory stay until the batch was waited for. A read overwrites whole pages of the memory.
  [[nodiscard]] Batch read(std::span<const DiskRange> ranges);
  [[nodiscard]] Batch write(std::span<const DiskRange> ranges);

 private:
  template <class Transfer>
  Batch begin(std::span<const DiskRange> ranges, const Transfer& transfer);
  std::optional<DiskWorkers> workers_;  // once there is work
};

}  // namespace neap::arena
