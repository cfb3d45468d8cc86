#include "arena/disk_backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <system_error>

#include "base/file.h"
#include "base/format.h"

namespace neap::arena {
namespace {

constexpr Bytes kPiece = 16_MiB;
constexpr std::size_t kPieces = 8;   // staging buffers: 128 MiB
constexpr std::size_t kWorkers = 4;  // writes or reads under way
constexpr std::size_t kCopying = 2;  // copies under way ahead of them

/// Threads that run jobs in order of arrival.
class Workers {
 public:
  Workers() {
    for (std::size_t i = 0; i < kWorkers; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;
      }
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  std::future<Status> run(std::function<Status()> job) {
    std::packaged_task<Status()> task(std::move(job));
    auto result = task.get_future();
    if (threads_.empty()) {
      task();
      return result;
    }
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    wake_.notify_one();
    return result;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<Status()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

std::vector<DiskCopy> pieces_of(const std::vector<DiskCopy>& copies) {
  std::vector<DiskCopy> pieces;
  for (const DiskCopy& copy : copies)
    for (Bytes at; at < copy.size; at += kPiece)
      pieces.push_back({copy.device + at.count(), copy.file, copy.offset + at,
                        std::min(kPiece, copy.size - at)});
  return pieces;
}

/// Buffers for a few pieces; back to the pool, and no copy under way in them, whatever happens.
class Staging {
 public:
  Staging(HostPool& hosts, device::CopyQueue& queue) : hosts_(hosts), queue_(queue) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    (void)queue_.drain();  // its failure has been met, or comes back with the next call
    hosts_.give(buffer_);
  }
  Status take(const std::vector<DiskCopy>& pieces) {
    for (const DiskCopy& piece : pieces) each_ = std::max(each_, piece.size);
    count_ = std::min(kPieces, pieces.size());
    NEAP_TRY_ASSIGN(buffer_, hosts_.take(each_ * count_, Bytes(0)));
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

Status copy_piece(HostPool& hosts, const device::Copy& whole,
                  const std::function<Status(const device::Copy&)>& enqueue) {
  std::vector<device::Copy> parts;
  hosts.split(whole, parts);
  for (const device::Copy& part : parts) NEAP_TRY(enqueue(part));
  return {};
}

}  // namespace

Result<std::shared_ptr<DiskFile>> DiskFile::make(const std::string& folder, Bytes size) {
  std::string where = folder;
  if (where.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    where = temporary != nullptr && *temporary != '\0' ? temporary : "/tmp";
  }
  int fd = ::open(where.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  if (fd < 0) fd = ::open(where.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    // No unnamed files here: a named one, unlinked at once.
    std::string name = where + "/neap-backup-XXXXXX";
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0)
    return Status::driver(
        ErrorCode::kIo, format("cannot make a backup file in {}: {}", where, system_reason(errno)),
        errno);
  std::shared_ptr<DiskFile> file(new DiskFile(fd, where));
  const auto length = static_cast<off_t>(size.count());
  int error = ::fallocate(fd, 0, 0, length) == 0 ? 0 : errno;
  if (error == EOPNOTSUPP) error = ::posix_fallocate(fd, 0, length);
  if (error != 0)
    return Status::driver(
        ErrorCode::kIo, format("a backup file of {} in {}: {}", size, where, system_reason(error)),
        error);
  return file;
}

DiskFile::~DiskFile() {
  ::close(descriptor_);
}

Status DiskFile::failure(std::string_view what, int error) const {
  return Status::driver(ErrorCode::kIo,
                        format("cannot {} a backup in {}: {}", what, where_, system_reason(error)),
                        error);
}

void DiskFile::stop_direct() const {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags >= 0) ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT);
}

Status DiskFile::write(Bytes offset, const std::byte* from, Bytes size) const {
  for (Bytes done; done < size;) {
    const ssize_t n = ::pwrite(descriptor_, from + done.count(), (size - done).count(),
                               static_cast<off_t>((offset + done).count()));
    if (n > 0) {
      done += Bytes(static_cast<std::uint64_t>(n));
    } else if (n < 0 && errno == EINVAL && (::fcntl(descriptor_, F_GETFL) & O_DIRECT) != 0) {
      stop_direct();  // the file system took the flag at open, but not the write
    } else if (n == 0 || errno != EINTR) {
      return failure("write", n == 0 ? ENOSPC : errno);
    }
  }
  return {};
}

Status DiskFile::read(Bytes offset, std::byte* to, Bytes size) const {
  for (Bytes done; done < size;) {
    const ssize_t n = ::pread(descriptor_, to + done.count(), (size - done).count(),
                              static_cast<off_t>((offset + done).count()));
    if (n > 0) {
      done += Bytes(static_cast<std::uint64_t>(n));
    } else if (n < 0 && errno == EINVAL && (::fcntl(descriptor_, F_GETFL) & O_DIRECT) != 0) {
      stop_direct();
    } else if (n == 0 || errno != EINTR) {
      return failure("read", n == 0 ? EIO : errno);
    }
  }
  return {};
}

Status copy_to_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                    device::CopyQueue& queue) {
  const auto pieces = pieces_of(copies);
  if (pieces.empty()) return {};
  Staging staging(hosts, queue);
  NEAP_TRY(staging.take(pieces));
  const std::size_t count = staging.count();
  std::vector<std::future<Status>> writes(count);
  struct Copying {
    std::size_t piece;
    std::uint64_t mark;
  };
  std::deque<Copying> copying;
  // Declared after what its jobs use: its destructor ends them first, on every way out.
  Workers workers;
  const auto hand_over = [&]() -> Status {
    const Copying oldest = copying.front();
    copying.pop_front();
    NEAP_TRY(queue.wait(oldest.mark));
    const DiskCopy& piece = pieces[oldest.piece];
    const std::byte* from = staging.piece(oldest.piece);
    writes[oldest.piece % count] =
        workers.run([&piece, from] { return piece.file->write(piece.offset, from, piece.size); });
    return {};
  };
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    // The buffer's last write was handed over before: copies ahead are fewer than buffers.
    if (writes[i % count].valid()) NEAP_TRY(writes[i % count].get());
    NEAP_TRY(copy_piece(hosts, {pieces[i].device, staging.piece(i), pieces[i].size},
                        [&](const device::Copy& part) { return queue.to_host(part); }));
    NEAP_TRY_ASSIGN(const std::uint64_t mark, queue.mark_to_host());
    copying.push_back({i, mark});
    if (copying.size() >= std::min(kCopying, count)) NEAP_TRY(hand_over());
  }
  while (!copying.empty()) NEAP_TRY(hand_over());
  for (auto& write : writes)
    if (write.valid()) NEAP_TRY(write.get());
  return {};
}

Status copy_from_disk(const std::vector<DiskCopy>& copies, HostPool& hosts,
                      device::CopyQueue& queue) {
  const auto pieces = pieces_of(copies);
  if (pieces.empty()) return {};
  Staging staging(hosts, queue);
  NEAP_TRY(staging.take(pieces));
  const std::size_t count = staging.count();
  std::vector<std::future<Status>> reads(count);
  std::vector<std::uint64_t> marks(count, 0);
  Workers workers;
  const auto start_read = [&](std::size_t i) {
    const DiskCopy& piece = pieces[i];
    std::byte* to = staging.piece(i);
    reads[i % count] =
        workers.run([&piece, to] { return piece.file->read(piece.offset, to, piece.size); });
  };
  for (std::size_t i = 0; i < count; ++i) start_read(i);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    NEAP_TRY(reads[i % count].get());
    NEAP_TRY(copy_piece(hosts, {pieces[i].device, staging.piece(i), pieces[i].size},
                        [&](const device::Copy& part) { return queue.to_device(part); }));
    NEAP_TRY_ASSIGN(marks[i % count], queue.mark_to_device());
    // The buffer of the piece before the last copies is free for the next read.
    if (i + 1 >= kCopying) {
      const std::size_t done = i + 1 - kCopying;
      NEAP_TRY(queue.wait(marks[done % count]));
      if (done + count < pieces.size()) start_read(done + count);
    }
  }
  return queue.drain();
}

}  // namespace neap::arena
