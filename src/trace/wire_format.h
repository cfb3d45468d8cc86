// The bytes of Neap's own trace files: numbers, event columns, framed blocks. docs/trace-format.md
// has the grammar. The Recorder, the Writer and the reader share this implementation.
//
// Threads   one user at a time.
//
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
/// Maximum of events per block; it bounds a reader's working memory.
inline constexpr std::size_t kMaxBlockEvents = 65536;

/// Values are part of the file format and never reused. Readers skip unknown types.
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
  /// Writes a signed difference. Values near zero take few bytes; differences wrap around.
  void difference(std::uint64_t value) { number((value << 1) ^ (~(value >> 63) + 1)); }
  void real(double value);
  void text(std::string_view value) {
    number(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Reads the output of Encoder. After a failure every call returns zero or nothing; check ok() at
/// the end.
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
  /// Reads a number of at most `most`.
  std::uint64_t number_up_to(std::uint64_t most) {
    const std::uint64_t value = number();
    return value <= most ? value : fail();
  }
  /// Reads a count of items of at least `least` bytes each. Fails if the input is too short for
  /// that many.
  std::size_t count(std::size_t least = 1) {
    const std::uint64_t value = number();  // read it before checking the remaining bytes
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

/// Encodes events as columns, one per field. Times and addresses are stored as differences.
void encode_events(std::span<const Event> events, Encoder& out);
/// Appends to `events`. False if the bytes are incomplete or malformed.
[[nodiscard]] bool decode_events(std::span<const std::uint8_t> bytes, std::vector<Event>& events);

struct BlockHeader {
  BlockType type{};
  Codec codec{};
  std::uint32_t stored = 0;  ///< bytes that follow the header
  std::uint32_t raw = 0;     ///< bytes after decompression
  std::uint32_t checksum = 0;
};
/// False if the bytes are not a block header of this format.
[[nodiscard]] bool parse_block_header(std::span<const std::uint8_t, kBlockHeaderSize> bytes,
                                      BlockHeader& header);
[[nodiscard]] std::uint32_t checksum(std::span<const std::uint8_t> bytes);

/// Decompresses block payloads. It reuses its buffers and context.
class BlockDecoder {
 public:
  BlockDecoder();
  ~BlockDecoder();
  BlockDecoder(const BlockDecoder&) = delete;
  BlockDecoder& operator=(const BlockDecoder&) = delete;
  /// Returns the payload, valid until the next call. Failures have no file name.
  [[nodiscard]] Result<std::span<const std::uint8_t>> decode(const BlockHeader& header,
                                                             std::span<const std::uint8_t> stored);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Appends blocks to an open file. A partly written block is removed again, so that the file always
/// ends with a whole block. Every later append then returns the same failure.
///
/// Cost      no heap allocation once the largest block has been seen.
class BlockFile {
 public:
  BlockFile();
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  /// Creates or empties `path` and writes the file header.
  Status create(const std::filesystem::path& path);
  /// Writes the file header to an empty file and takes ownership of `fd`. `path` names it in
  /// messages.
  Status take(int fd, const std::filesystem::path& path);
  Status append(BlockType type, std::span<const std::uint8_t> payload);
  /// Calls fsync and close. Returns the first failure of any operation.
  Status close();
  /// Closes without syncing; the contents stay.
  void abandon();
  [[nodiscard]] std::uint64_t size() const;

 private:
  Status write_all(std::span<const std::uint8_t> bytes);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neap::trace::wire
