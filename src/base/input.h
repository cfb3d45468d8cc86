// A forward cursor over the bytes of a file or of memory. gzip and zstd are decompressed on the
// way, including several members in sequence.
//
// Threads   one user; a compressed file has a helper thread that decompresses it.
// Failure   broken or truncated compression and a decompression bomb fail with a Status. The plain
//           end of the file is not a failure.
// Memory    4 MiB of buffers, plus the largest piece requested at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace neap {

/// Source of Input's bytes; one step of a chain (file, then decompression).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills a part of `to` and returns the bytes filled; 0 at the end.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<std::uint8_t> to) = 0;
  /// Bytes of the file that were read so far, before decompression. Any thread may call it.
  [[nodiscard]] virtual std::uint64_t consumed() const = 0;
};

class Input {
 public:
  [[nodiscard]] static Result<Input> open(const std::filesystem::path& path);
  /// `bytes` outlives the Input.
  [[nodiscard]] static Result<Input> over(std::span<const std::uint8_t> bytes, std::string name);
  Input(Input&&) noexcept;
  Input& operator=(Input&&) noexcept;
  ~Input();

  /// This many bytes after data() are always readable, even if fewer are available(). The excess is
  /// undefined.
  static constexpr std::size_t kPadding = 16;

  /// Makes `n` bytes readable at data(). False if the file has fewer.
  [[nodiscard]] bool ensure(std::size_t n) { return available() >= n || refill(n); }
  [[nodiscard]] const std::uint8_t* data() const { return cursor_; }
  [[nodiscard]] std::size_t available() const { return static_cast<std::size_t>(end_ - cursor_); }
  /// `n` is at most available().
  void advance(std::size_t n) { cursor_ += n; }
  /// Skips any number of bytes. False if the file ends before.
  [[nodiscard]] bool skip(std::uint64_t n);
  /// Offset of data() in the decompressed file.
  [[nodiscard]] std::uint64_t position() const {
    return base_ + static_cast<std::uint64_t>(cursor_ - buffer_.data());
  }
  /// The failure of ensure(); a success at the end of the file.
  [[nodiscard]] const Status& status() const { return status_; }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t file_size() const { return file_size_; }  ///< 0 when unknown
  [[nodiscard]] std::uint64_t consumed() const;
  [[nodiscard]] bool packed() const { return packed_; }

 private:
  Input();
  [[nodiscard]] Status start(std::unique_ptr<ByteSource> source);
  [[nodiscard]] bool refill(std::size_t n);

  std::string name_;
  std::unique_ptr<ByteSource> source_;
  std::vector<std::uint8_t> buffer_;  ///< the last kPadding bytes stay unused
  const std::uint8_t* cursor_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  std::uint64_t base_ = 0;  ///< offset of buffer_[0]
  std::uint64_t file_size_ = 0;
  bool packed_ = false;
  Status status_;
};

}  // namespace neap
