// The rollout's copy of the weights in a file of the run: the rollout of Colocation::kReload starts
// with weights that passed through the disk.
//
// Model     Each tensor begins at a page of the file. Two staging buffers in pinned host memory: one
//           is copied from or to the device while the other is written or read.
// Threads   one at a time.
// Failure   Error: kIo, or kOutOfHostMemory for the buffers.
// Cost      the disk's time; the file's space is reserved when it is made.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "arena/disk_storage.h"
#include "arena/host_storage.h"

namespace neap::train {

class RolloutFile {
 public:
  /// A file for the contents of `tensors`, which are contiguous. `buffer` is the size of a staging
  /// buffer: whole pages. `arena` must outlive it.
  RolloutFile(arena::Arena& arena, const std::string& tag, const std::vector<at::Tensor>& tensors,
              Bytes buffer);

  void store();
  void load();

 private:
  static constexpr std::size_t kBuffers = 2;
  struct Piece {
    at::Tensor bytes;  ///< (bytes,) on the device
    Bytes offset;      ///< in the file
  };
  /// The range of the file and the buffer that a piece uses: whole pages.
  [[nodiscard]] arena::DiskRange range(std::size_t piece) const;
  /// The buffer of a piece, as (bytes,).
  [[nodiscard]] at::Tensor staged(std::size_t piece) const;
  /// Waits for all transfers. Throws the first failure.
  void finish();
  /// Waits for transfers that a call left when it failed: they use the buffers.
  void drop_failed();

  Bytes buffer_;
  std::vector<Piece> pieces_;
  std::unique_ptr<arena::DiskStorage> storage_;
  std::unique_ptr<arena::HostStorage> memory_;
  std::array<arena::DiskLane::Batch, kBuffers> running_;
  arena::DiskLane disk_;  // last member, so that its jobs end before what they use is destroyed
};

}  // namespace neap::train
