// Bytes of a file or of memory, unpacked on the way (gzip and zstd, also several members one after
// the other), behind one forward cursor.
//
// Threads   one user; a packed file is unpacked by a helper thread of its own.
// Failure   a broken or cut packing and a decompression bomb are Status; plain end of file is not.
// Memory    4 MiB of buffers, plus the largest piece asked for at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace neap {

/// Where Input's bytes come from; one step of a chain (file, then unpacking).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills a part of `to`; 0 is the end.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<std::uint8_t> to) = 0;
  /// Bytes taken from the file so far, packed as they lie there. Any thread.
  [[nodiscard]] virtual std::uint64_t consumed() const = 0;
};

class Input {
 public:
  [[nodiscard]] static Result<Input> open(const std::filesystem::path& path);
  /// `bytes` outlive the Input.
  [[nodiscard]] static Result<Input> over(std::span<const std::uint8_t> bytes, std::string name);
  Input(Input&&) noexcept;
  Input& operator=(Input&&) noexcept;
  ~Input();

  /// So many bytes can be read from data() on even where fewer are available(); the rest is
  /// undefined.
  static constexpr std::size_t kPadding = 16;

  /// Makes `n` bytes readable at data() if the file has so many. True if it has.
  [[nodiscard]] bool ensure(std::size_t n) { return available() >= n || refill(n); }
  [[nodiscard]] const std::uint8_t* data() const { return cursor_; }
  [[nodiscard]] std::size_t available() const { return static_cast<std::size_t>(end_ - cursor_); }
  /// `n` is at most available().
  void advance(std::size_t n) { cursor_ += n; }
  /// Skips `n` bytes, however many; false when the file ends before.
  [[nodiscard]] bool skip(std::uint64_t n);
  /// Offset of data() in the unpacked file.
  [[nodiscard]] std::uint64_t position() const {
    return base_ + static_cast<std::uint64_t>(cursor_ - buffer_.data());
  }
  /// Why ensure() failed, when it was not the end of the file.
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
  std::vector<std::uint8_t> buffer_;  ///< kPadding at its end stays free
  const std::uint8_t* cursor_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  std::uint64_t base_ = 0;  ///< offset of buffer_[0]
  std::uint64_t file_size_ = 0;
  bool packed_ = false;
  Status status_;
};

}  // namespace neap
