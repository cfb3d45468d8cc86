// Backups in files: direct writes, several outstanding, past the page cache.
//
// Model     One unnamed file for each pause, its space secured before anything is copied; it
//           vanishes with its last region or with the process. Bytes go device -> staging buffer ->
//           file, copies and writes of different pieces at once.
// Threads   a DiskFile belongs to the operation that moves it; its worker threads live for that.
// Failure   kIo with the system's reason; a full disk is found at make, before anything is lost.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "arena/host_pool.h"
#include "device/device.h"

namespace neap::arena {

class DiskFile {
 public:
  /// A file of `size` with all its space. `folder` empty: the system's temporary folder.
  [[nodiscard]] static Result<std::shared_ptr<DiskFile>> make(const std::string& folder,
                                                              Bytes size);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  Status write(Bytes offset, const std::byte* from, Bytes size) const;
  Status read(Bytes offset, std::byte* to, Bytes size) const;

 private:
  explicit DiskFile(int descriptor, std::string where)
      : descriptor_(descriptor), where_(std::move(where)) {}
  [[nodiscard]] Status failure(std::string_view what, int error) const;
  void stop_direct() const;
  /// Zero, or the system's reason.
  [[nodiscard]] int take_space(off_t length) const;

  int descriptor_;
  std::string where_;
};

/// A stretch of device memory and its place in a file.
struct DiskCopy {
  device::Address device = 0;
  std::shared_ptr<DiskFile> file;
  Bytes offset;
  Bytes size;
};

/// Runs the copies, pieces of one staging buffer each. Staging comes from `hosts` and goes back.
Status copy_to_disk(const std::vector<DiskCopy>& copies, HostPool& hosts, device::CopyQueue& queue);
Status copy_from_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                      device::CopyQueue& queue);

}  // namespace neap::arena
