// The bytes of Neap's own trace files: numbers, event columns, framed blocks. docs/trace-format.md
// is the grammar; this is its only implementation, shared by the Recorder, the Writer and the
// reader.
//
// Threads   one user at a time.
// Failure   Status; decoding checks every bound and never reads past its input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "trace/event.h"

namespace neap::trace::wire {

inline constexpr std::string_view kMagic{"NEAPTRC\n", 8};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kFileHeaderSize = 16;
inline constexpr std::size_t kBlockHeaderSize = 24;
inline constexpr std::uint32_t kBlockMagic = 0x4B4C424E;  // "NBLK"
inline constexpr std::uint32_t kMaxBlockSize = 64U << 20;
/// Most events in one block; a reader's working memory follows from it.
inline constexpr std::size_t kMaxBlockEvents = 65536;

/// Values are part of the file format and never reused. Readers skip what they do not know.
enum class BlockType : std::uint8_t {
  kStart = 1,
  kMetadata = 2,
  kNames = 3,
  kEvents = 4,
  kFrames = 5,
  kStacks = 6,
  kPools = 7,
  kDevice = 8,
  kSegments = 9,
  kBlocks = 10,
  kSettings = 11,
  kWarnings = 12,
  kDropped = 13,
  kEnd = 14,
};
enum class Codec : std::uint8_t { kRaw = 0, kZstd = 1, kZlib = 2 };

/// Appends numbers and text to a growing buffer that keeps its capacity between blocks.
class Encoder {
 public:
  void clear() { bytes_.clear(); }
  void reserve(std::size_t n) { bytes_.reserve(n); }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  void byte(std::uint8_t value) { bytes_.push_back(value); }
  void number(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }
  /// Small when near zero on either side; differences wrap around.
  void difference(std::uint64_t value) { number((value << 1) ^ (~(value >> 63) + 1)); }
  void real(double value);
  void text(std::string_view value) {
    number(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Reads what Encoder wrote. After a failure every call gives zero or nothing; ask ok() at the end.
class Decoder {
 public:
  explicit Decoder(std::span<const std::uint8_t> bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  std::uint8_t byte() {
    if (at_ == end_) return fail();
    return *at_++;
  }
  std::uint64_t number() {
    if (at_ != end_ && *at_ < 0x80) return *at_++;
    return long_number();
  }
  std::uint64_t difference() {
    const std::uint64_t value = number();
    return (value >> 1) ^ (~(value & 1) + 1);
  }
  /// A number that must not exceed `most`.
  std::uint64_t number_up_to(std::uint64_t most) {
    const std::uint64_t value = number();
    return value <= most ? value : fail();
  }
  /// A count of things that take at least `least` bytes each: never more than can follow.
  std::size_t count(std::size_t least = 1) {
    const std::uint64_t value = number();  // read before what is left is asked
    return static_cast<std::size_t>(value <= left() / least ? value : fail());
  }
  double real();
  std::string_view text();

 private:
  std::uint8_t fail() {
    ok_ = false;
    at_ = end_;
    return 0;
  }
  std::uint64_t long_number();
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  bool ok_ = true;
};

/// Events as columns: each field of all events together, times and addresses as differences.
void encode_events(std::span<const Event> events, Encoder& out);
/// Appends to `events`; false when the bytes are not whole and well formed.
[[nodiscard]] bool decode_events(std::span<const std::uint8_t> bytes, std::vector<Event>& events);

struct BlockHeader {
  BlockType type{};
  Codec codec{};
  std::uint32_t stored = 0;  ///< bytes that follow the header
  std::uint32_t raw = 0;     ///< bytes after decompression
  std::uint32_t checksum = 0;
};
/// False when the bytes are not a block header of this format.
[[nodiscard]] bool parse_block_header(std::span<const std::uint8_t, kBlockHeaderSize> bytes,
                                      BlockHeader& header);
[[nodiscard]] std::uint32_t checksum(std::span<const std::uint8_t> bytes);

/// Decompresses block payloads; keeps its buffers and context.
class BlockDecoder {
 public:
  BlockDecoder();
  ~BlockDecoder();
  BlockDecoder(const BlockDecoder&) = delete;
  BlockDecoder& operator=(const BlockDecoder&) = delete;
  /// The payload; valid until the next call. The text of a failure has no file name.
  [[nodiscard]] Result<std::span<const std::uint8_t>> decode(const BlockHeader& header,
                                                             std::span<const std::uint8_t> stored);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Appends blocks to an open file. A block that cannot be written whole is cut off again, so that
/// the file always ends at a block's end, and every later append fails alike.
/// Cost      no heap allocation once the largest block has been seen.
class BlockFile {
 public:
  BlockFile();
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  /// Creates or empties `path` and writes the file header.
  Status create(const std::filesystem::path& path);
  /// Writes the file header to an empty file, which it closes in the end. `path` names it in messages.
  Status take(int fd, const std::filesystem::path& path);
  Status append(BlockType type, std::span<const std::uint8_t> payload);
  /// fsync and close; the first failure of any operation.
  Status close();
  /// Closes without syncing: the file stays as it is.
  void abandon();
  [[nodiscard]] std::uint64_t size() const;

 private:
  Status write_all(std::span<const std::uint8_t> bytes);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::trace::wire
