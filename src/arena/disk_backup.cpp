#include "arena/disk_backup.h"

#include <algorithm>
#include <functional>
#include <future>

#include "arena/disk_workers.h"

namespace neap::arena {
namespace {

constexpr std::size_t kPieces = 64;   // staging buffers: 64 MiB
constexpr std::size_t kCopying = 16;  // copies in flight ahead of the file operations

std::vector<DiskCopy> pieces_of(const std::vector<DiskCopy>& copies) {
  std::vector<DiskCopy> pieces;
  for (const DiskCopy& copy : copies)
    for (Bytes at; at < copy.size; at += kDiskPiece)
      pieces.push_back({copy.device + at.count(), copy.file, copy.offset + at,
                        std::min(kDiskPiece, copy.size - at)});
  return pieces;
}

/// Buffers for a few pieces. The destructor waits for copies that use them, then returns them to
/// the pool.
class Staging {
 public:
  Staging(HostPool& hosts, device::CopyQueue& queue) : hosts_(hosts), queue_(queue) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    (void)queue_.drain();  // the failure has been reported, or the next call reports it
    hosts_.give(buffer_);
    hosts_.trim();
  }
  Status take(const std::vector<DiskCopy>& pieces) {
    for (const DiskCopy& piece : pieces) each_ = std::max(each_, piece.size);
    count_ = std::min(kPieces, pieces.size());
    NEAP_TRY_ASSIGN(buffer_, hosts_.take(each_ * count_, Bytes(0), HostPool::kStaging,
                                         HostPool::Limit::kMachine));
    return hosts_.ready({buffer_}).wait(buffer_.at, buffer_.size);
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::byte* piece(std::size_t i) const {
    return buffer_.at + each_.count() * (i % count_);
  }

 private:
  HostPool& hosts_;
  device::CopyQueue& queue_;
  HostBuffer buffer_;
  Bytes each_;
  std::size_t count_ = 0;
};

/// Moves pieces between device and file. Each piece is a copy and a file operation, in either
/// order, through one staging buffer. Copies and file operations of different pieces overlap.
class Pipeline {
 public:
  enum class Order { kCopyFirst, kFileFirst };
  using Enqueue = std::function<Status(const device::Copy&)>;
  using Mark = std::function<Result<std::uint64_t>()>;
  using Transfer = std::function<Status(const DiskCopy&, std::byte* buffer)>;

  Pipeline(const std::vector<DiskCopy>& copies, HostPool& hosts, device::CopyQueue& queue)
      : hosts_(hosts),
        queue_(queue),
        pieces_(pieces_of(copies)),
        staging_(hosts, queue),
        workers_(pieces_.size()) {}

  Status run(const Enqueue& enqueue, const Mark& mark, const Transfer& transfer, Order order) {
    if (pieces_.empty()) return {};
    NEAP_TRY(staging_.take(pieces_));
    const std::size_t count = staging_.count();
    marks_.resize(count);
    transfers_.resize(count);
    const Step copy{[&](std::size_t i) -> Status {
                      std::vector<device::Copy> parts;
                      hosts_.split({pieces_[i].device, staging_.piece(i), pieces_[i].size}, parts);
                      for (const device::Copy& part : parts) NEAP_TRY(enqueue(part));
                      NEAP_TRY_ASSIGN(marks_[i % count], mark());
                      return {};
                    },
                    [&](std::size_t i) { return queue_.wait(marks_[i % count]); }};
    const Step file{[&](std::size_t i) -> Status {
                      transfers_[i % count] =
                          workers_.run([&, i] { return transfer(pieces_[i], staging_.piece(i)); });
                      return {};
                    },
                    [&](std::size_t i) { return transfers_[i % count].get(); }};
    // A few copies keep the link busy; the remaining buffers are for file operations.
    const std::size_t copying = std::min(kCopying, count);
    return order == Order::kCopyFirst ? flow(copy, file, copying - 1)
                                      : flow(file, copy, count - copying);
  }

 private:
  struct Step {
    std::function<Status(std::size_t)> start, finish;
  };
  /// `ahead`: how many pieces the first step runs ahead of the second.
  Status flow(const Step& first, const Step& second, std::size_t ahead) const {
    const std::size_t n = pieces_.size();
    const std::size_t buffers = staging_.count();
    for (std::size_t i = 0; i < n + ahead; ++i) {
      if (i < n) {
        if (i >= buffers) NEAP_TRY(second.finish(i - buffers));
        NEAP_TRY(first.start(i));
      }
      if (i < ahead) continue;
      NEAP_TRY(first.finish(i - ahead));
      NEAP_TRY(second.start(i - ahead));
    }
    for (std::size_t i = n - std::min(n, buffers); i < n; ++i) NEAP_TRY(second.finish(i));
    return {};
  }

  HostPool& hosts_;
  device::CopyQueue& queue_;
  const std::vector<DiskCopy> pieces_;
  Staging staging_;
  std::vector<std::uint64_t> marks_;
  std::vector<std::future<Status>> transfers_;
  DiskWorkers workers_;  // last member: its jobs end before what they use is destroyed
};

}  // namespace

Status copy_to_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                    device::CopyQueue& queue) {
  Pipeline pipeline(copies, hosts, queue);
  return pipeline.run([&](const device::Copy& part) { return queue.to_host(part); },
                      [&] { return queue.mark_to_host(); },
                      [](const DiskCopy& piece, std::byte* buffer) {
                        return piece.file->write(piece.offset, buffer, piece.size);
                      },
                      Pipeline::Order::kCopyFirst);
}

Status copy_from_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                      device::CopyQueue& queue) {
  Pipeline pipeline(copies, hosts, queue);
  return pipeline.run([&](const device::Copy& part) { return queue.to_device(part); },
                      [&] { return queue.mark_to_device(); },
                      [](const DiskCopy& piece, std::byte* buffer) {
                        return piece.file->read(piece.offset, buffer, piece.size);
                      },
                      Pipeline::Order::kFileFirst);
}

}  // namespace neap::arena
