#include "base/input.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/file.h"
#include "base/open_file.h"

namespace neap {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kPackedChunk = std::size_t{1} << 16;

class FileSource final : public ByteSource {
 public:
  FileSource(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override { ::close(fd_); }
  Result<std::size_t> read(std::span<std::uint8_t> to) override {
    while (true) {
      const ssize_t n = ::read(fd_, to.data(), to.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        return Status(ErrorCode::kIo, "Cannot read " + name_ + ": " + system_reason(errno));
      consumed_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      return static_cast<std::size_t>(n);
    }
  }
  [[nodiscard]] std::uint64_t consumed() const override {
    return consumed_.load(std::memory_order_relaxed);
  }

 private:
  int fd_;
  std::string name_;
  std::atomic<std::uint64_t> consumed_{0};
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::uint8_t> bytes) : left_(bytes) {}
  Result<std::size_t> read(std::span<std::uint8_t> to) override {
    const std::size_t n = std::min(to.size(), left_.size());
    if (n > 0) std::memcpy(to.data(), left_.data(), n);
    left_ = left_.subspan(n);
    consumed_.fetch_add(n, std::memory_order_relaxed);
    return n;
  }
  [[nodiscard]] std::uint64_t consumed() const override {
    return consumed_.load(std::memory_order_relaxed);
  }

 private:
  std::span<const std::uint8_t> left_;
  std::atomic<std::uint64_t> consumed_{0};
};

/// Returns the bytes that were read to detect the compression, then reads on.
class PrefixedSource final : public ByteSource {
 public:
  PrefixedSource(std::vector<std::uint8_t> prefix, std::unique_ptr<ByteSource> rest)
      : prefix_(std::move(prefix)), rest_(std::move(rest)) {}
  Result<std::size_t> read(std::span<std::uint8_t> to) override {
    if (at_ == prefix_.size()) return rest_->read(to);
    const std::size_t n = std::min(to.size(), prefix_.size() - at_);
    std::memcpy(to.data(), prefix_.data() + at_, n);
    at_ += n;
    return n;
  }
  [[nodiscard]] std::uint64_t consumed() const override { return rest_->consumed(); }

 private:
  std::vector<std::uint8_t> prefix_;
  std::size_t at_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

/// Common part of gzip and zstd: compressed input, the limit against decompression bombs, the end
/// of the last member.
class UnpackingSource : public ByteSource {
 public:
  UnpackingSource(std::unique_ptr<ByteSource> packed, std::string name)
      : packed_(std::move(packed)), name_(std::move(name)), in_(kPackedChunk) {}
  Result<std::size_t> read(std::span<std::uint8_t> to) final {
    NEAP_TRY(failure_);
    Result<std::size_t> n = read_some(to);
    if (!n.ok()) failure_ = n.status();
    return n;
  }
  [[nodiscard]] std::uint64_t consumed() const final { return packed_->consumed(); }

 protected:
  /// Decompresses from in_[in_at_, in_end_) into `to`.
  virtual Result<std::size_t> unpack(std::span<std::uint8_t> to) = 0;
  [[nodiscard]] virtual bool between_members() const = 0;
  [[nodiscard]] Status broken(const std::string& what) const {
    return {ErrorCode::kCorrupt, name_ + " " + what};
  }
  std::unique_ptr<ByteSource> packed_;
  std::string name_;
  std::vector<std::uint8_t> in_;
  std::size_t in_at_ = 0;
  std::size_t in_end_ = 0;
  bool ended_ = false;

 private:
  Result<std::size_t> read_some(std::span<std::uint8_t> to) {
    while (true) {
      if (in_at_ == in_end_ && !ended_) {
        NEAP_TRY_ASSIGN(in_end_, packed_->read(in_));
        in_at_ = 0;
        ended_ = in_end_ == 0;
      }
      if (ended_ && between_members()) return std::size_t{0};
      const std::size_t before = in_at_;
      NEAP_TRY_ASSIGN(const std::size_t n, unpack(to));
      taken_ += in_at_ - before;
      given_ += n;
      constexpr const ReadLimits& kLimits = read_limits::kPacked;
      if (static_cast<double>(given_) > kLimits.unpacked.of(taken_))
        return over_limit(name_, kLimits, Excess::kUnpacked, taken_, ErrorCode::kCorrupt);
      if (n > 0) return n;
      if (ended_ && in_at_ == in_end_ && !between_members())
        return broken("ends in the middle of its compressed data; the file is cut short");
    }
  }
  Status failure_;
  std::uint64_t taken_ = 0;
  std::uint64_t given_ = 0;
};

class GzipSource final : public UnpackingSource {
 public:
  using UnpackingSource::UnpackingSource;
  ~GzipSource() override {
    if (ready_) ::inflateEnd(&stream_);
  }

 private:
  Result<std::size_t> unpack(std::span<std::uint8_t> to) override {
    if (!ready_) {
      if (::inflateInit2(&stream_, 15 + 16) != Z_OK)
        return Status(ErrorCode::kOutOfHostMemory, "No memory to unpack " + name_);
      ready_ = true;
    } else if (member_ended_) {
      // Zeros after the last member are padding (tapes, block devices).
      while (in_at_ < in_end_ && in_[in_at_] == 0) ++in_at_;
      if (in_at_ == in_end_) return std::size_t{0};
      ::inflateReset(&stream_);
    }
    member_ended_ = false;
    stream_.next_in = in_.data() + in_at_;
    stream_.avail_in = static_cast<uInt>(in_end_ - in_at_);
    stream_.next_out = to.data();
    stream_.avail_out = static_cast<uInt>(to.size());
    const int result = ::inflate(&stream_, Z_NO_FLUSH);
    in_at_ = in_end_ - stream_.avail_in;
    if (result == Z_STREAM_END) {
      member_ended_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return broken(std::string("is not valid gzip: ") +
                    (stream_.msg != nullptr ? stream_.msg : "damaged data"));
    }
    return to.size() - stream_.avail_out;
  }
  [[nodiscard]] bool between_members() const override { return member_ended_; }
  z_stream stream_{};
  bool ready_ = false;
  bool member_ended_ = false;
};

class ZstdSource final : public UnpackingSource {
 public:
  using UnpackingSource::UnpackingSource;
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }

 private:
  Result<std::size_t> unpack(std::span<std::uint8_t> to) override {
    if (context_ == nullptr)
      return Status(ErrorCode::kOutOfHostMemory, "No memory to unpack " + name_);
    ZSTD_inBuffer in{in_.data(), in_end_, in_at_};
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    const std::size_t result = ZSTD_decompressStream(context_, &out, &in);
    in_at_ = in.pos;
    if (ZSTD_isError(result) != 0)
      return broken(std::string("is not valid zstd: ") + ZSTD_getErrorName(result));
    frame_ended_ = result == 0;
    return out.pos;
  }
  [[nodiscard]] bool between_members() const override { return frame_ended_; }
  ZSTD_DCtx* context_ = ZSTD_createDCtx();
  bool frame_ended_ = false;
};

/// Reads another source in a thread, two chunks ahead.
class AheadSource final : public ByteSource {
 public:
  explicit AheadSource(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
    for (Chunk& c : chunks_) c.bytes.resize(kChunk);
    thread_ = std::thread([this] { run(); });
  }
  AheadSource(const AheadSource&) = delete;
  AheadSource& operator=(const AheadSource&) = delete;
  ~AheadSource() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Result<std::size_t> read(std::span<std::uint8_t> to) override {
    Chunk& chunk = chunks_[reading_];
    if (!chunk.full) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return chunk.ready; });
      chunk.full = true;
    }
    if (!chunk.status.ok()) return chunk.status;
    const std::size_t n = std::min(to.size(), chunk.size - chunk.at);
    if (n > 0) std::memcpy(to.data(), chunk.bytes.data() + chunk.at, n);
    chunk.at += n;
    if (chunk.at == chunk.size && chunk.size > 0) {
      const std::lock_guard lock(mutex_);
      chunk.full = chunk.ready = false;
      changed_.notify_all();
      reading_ ^= 1;
    }
    return n;
  }
  [[nodiscard]] std::uint64_t consumed() const override { return source_->consumed(); }

 private:
  struct Chunk {
    std::vector<std::uint8_t> bytes;
    std::size_t size = 0;
    std::size_t at = 0;
    Status status;
    bool ready = false;  // filled; guarded by the lock
    bool full = false;   // the reader's own record that it has seen `ready`
  };
  void run() {
    for (std::size_t i = 0;; i ^= 1) {
      Chunk& chunk = chunks_[i];
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !chunk.ready; });
        if (stop_) return;
      }
      chunk.size = chunk.at = 0;
      while (chunk.size < chunk.bytes.size()) {
        const Result<std::size_t> n = source_->read(std::span(chunk.bytes).subspan(chunk.size));
        if (!n.ok()) {
          // Bytes before the damage are still delivered; the next chunk carries the failure.
          if (chunk.size == 0) chunk.status = n.status();
          break;
        }
        if (*n == 0) break;
        chunk.size += *n;
      }
      const bool last = chunk.size == 0;
      {
        const std::lock_guard lock(mutex_);
        chunk.ready = true;
      }
      changed_.notify_all();
      if (last) return;
    }
  }
  std::unique_ptr<ByteSource> source_;
  std::array<Chunk, 2> chunks_;
  std::size_t reading_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Input::Input() = default;
Input::Input(Input&&) noexcept = default;
Input& Input::operator=(Input&&) noexcept = default;
Input::~Input() = default;

std::uint64_t Input::consumed() const {
  return source_->consumed();
}

Status Input::start(std::unique_ptr<ByteSource> source) {
  std::vector<std::uint8_t> head(4);
  std::size_t have = 0;
  while (have < head.size()) {
    NEAP_TRY_ASSIGN(const std::size_t n, source->read(std::span(head).subspan(have)));
    if (n == 0) break;
    have += n;
  }
  head.resize(have);
  const auto begins = [&](std::initializer_list<std::uint8_t> magic) {
    return head.size() >= magic.size() && std::equal(magic.begin(), magic.end(), head.begin());
  };
  const bool gzip = begins({0x1F, 0x8B});
  // pzstd begins with a skippable frame, which has one of 16 magic numbers.
  const bool skippable = head.size() >= 4 && (head[0] & 0xF0U) == 0x50 && head[1] == 0x2A &&
                         head[2] == 0x4D && head[3] == 0x18;
  const bool zstd = begins({0x28, 0xB5, 0x2F, 0xFD}) || skippable;
  source = std::make_unique<PrefixedSource>(std::move(head), std::move(source));
  if (gzip) source = std::make_unique<GzipSource>(std::move(source), name_);
  if (zstd) source = std::make_unique<ZstdSource>(std::move(source), name_);
  packed_ = gzip || zstd;
  // A small file does not justify a thread.
  if (packed_ && file_size_ > kChunk / 4) source = std::make_unique<AheadSource>(std::move(source));
  source_ = std::move(source);
  // A small file does not need large buffers.
  const std::uint64_t guess = file_size_ == 0 ? kChunk : file_size_ * (packed_ ? 16 : 1) + 4096;
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(guess, kChunk)) + kPadding);
  cursor_ = end_ = buffer_.data();
  return {};
}

Result<Input> Input::open(const std::filesystem::path& path) {
  NEAP_TRY_ASSIGN(Descriptor opened, open_file(path));
  NEAP_TRY(check_holes(opened.get(), path));
  const int fd = opened.take();
  auto source = std::make_unique<FileSource>(fd, path.string());
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return Status(ErrorCode::kIo, "Cannot stat " + path.string() + ": " + system_reason(errno));
  if (S_ISDIR(info.st_mode))
    return Status(ErrorCode::kInvalidArgument, "Cannot read " + path.string() + ": it is a folder");
  Input input;
  input.name_ = path.string();
  input.file_size_ = S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : 0;
  NEAP_TRY(input.start(std::move(source)));
  return input;
}

Result<Input> Input::over(std::span<const std::uint8_t> bytes, std::string name) {
  Input input;
  input.name_ = std::move(name);
  input.file_size_ = bytes.size();
  NEAP_TRY(input.start(std::make_unique<MemorySource>(bytes)));
  return input;
}

bool Input::refill(std::size_t n) {
  if (!status_.ok()) return false;
  const std::size_t have = available();
  base_ = position();
  if (have > 0) std::memmove(buffer_.data(), cursor_, have);
  std::size_t filled = have;
  while (filled < n) {
    // A damaged file may claim any length. Grow only as bytes arrive, so that it costs no memory.
    if (filled == buffer_.size()) buffer_.resize(std::min(std::max(n, kChunk), buffer_.size() * 2));
    const Result<std::size_t> got = source_->read(std::span(buffer_).subspan(filled));
    if (!got.ok()) status_ = got.status();
    if (!got.ok() || *got == 0) break;
    filled += *got;
  }
  cursor_ = buffer_.data();
  end_ = buffer_.data() + filled;
  return filled >= n;
}

bool Input::skip(std::uint64_t n) {
  while (n > available()) {
    n -= available();
    cursor_ = end_;
    if (!refill(1)) return false;
  }
  advance(static_cast<std::size_t>(n));
  return true;
}

}  // namespace neap
