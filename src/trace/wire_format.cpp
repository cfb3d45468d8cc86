#include "trace/wire_format.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace neap::trace::wire {
namespace {

void put_u32(std::uint8_t* at, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<std::uint8_t>(value >> (8 * i));
}
std::uint32_t get_u32(const std::uint8_t* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(at[i]) << (8 * i);
  return value;
}

template <class Get>
void encode_column(std::span<const Event> events, Encoder& out, Get get) {
  for (const Event& e : events) out.number(get(e));
}
template <class Get>
void encode_differences(std::span<const Event> events, Encoder& out, Get get) {
  std::uint64_t last = 0;
  for (const Event& e : events) {
    const std::uint64_t value = get(e);
    out.difference(value - last);
    last = value;
  }
}

// Smaller payloads do not shrink; the header alone has 24 bytes.
constexpr std::size_t kSmallestCompressed = 128;

}  // namespace

void Encoder::real(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 0; i < 8; ++i) byte(static_cast<std::uint8_t>(bits >> (8 * i)));
}

std::uint64_t Decoder::long_number() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == end_) return fail();
    const std::uint8_t b = *at_++;
    if (shift == 63 && b > 1) return fail();
    value |= static_cast<std::uint64_t>(b & 0x7F) << shift;
    if (b < 0x80) return value;
  }
  return fail();
}

double Decoder::real() {
  std::uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= static_cast<std::uint64_t>(byte()) << (8 * i);
  return ok_ ? std::bit_cast<double>(bits) : 0;
}

std::string_view Decoder::text() {
  const std::size_t size = count();
  if (!ok_) return {};
  const std::string_view value(reinterpret_cast<const char*>(at_), size);
  at_ += size;
  return value;
}

void encode_events(std::span<const Event> events, Encoder& out) {
  out.number(events.size());
  for (const Event& e : events) out.byte(static_cast<std::uint8_t>(e.kind));
  encode_differences(events, out, [](const Event& e) { return e.time_ns; });
  encode_differences(events, out, [](const Event& e) { return e.address; });
  encode_column(events, out, [](const Event& e) { return e.size; });
  encode_differences(events, out, [](const Event& e) { return e.stream; });
  encode_column(events, out, [](const Event& e) { return e.name; });
  encode_column(events, out, [](const Event& e) { return e.device; });
  encode_column(events, out, [](const Event& e) { return e.pool; });
}

bool decode_events(std::span<const std::uint8_t> bytes, std::vector<Event>& events) {
  Decoder in(bytes);
  const std::size_t n = in.count(8);  // eight columns of at least one byte
  if (!in.ok() || n > kMaxBlockEvents) return false;
  const std::size_t first = events.size();
  events.resize(first + n);
  const std::span<Event> out(events.data() + first, n);
  for (Event& e : out) e.kind = static_cast<EventKind>(in.byte());
  std::uint64_t last = 0;
  for (Event& e : out) e.time_ns = last += in.difference();
  last = 0;
  for (Event& e : out) e.address = last += in.difference();
  for (Event& e : out) e.size = in.number();
  last = 0;
  for (Event& e : out) e.stream = last += in.difference();
  for (Event& e : out) e.name = static_cast<std::uint32_t>(in.number_up_to(0xFFFFFFFF));
  for (Event& e : out) e.device = static_cast<std::uint16_t>(in.number_up_to(0xFFFF));
  for (Event& e : out) e.pool = static_cast<std::uint8_t>(in.number_up_to(0xFF));
  if (in.ok() && in.left() == 0) return true;
  events.resize(first);
  return false;
}

std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, bytes.data(), bytes.size()));
}

bool parse_block_header(std::span<const std::uint8_t, kBlockHeaderSize> bytes,
                        BlockHeader& header) {
  if (get_u32(bytes.data()) != kBlockMagic) return false;
  if (get_u32(bytes.data() + 20) != checksum(bytes.first(20))) return false;
  header.type = static_cast<BlockType>(bytes[4]);
  header.codec = static_cast<Codec>(bytes[5]);
  header.stored = get_u32(bytes.data() + 8);
  header.raw = get_u32(bytes.data() + 12);
  header.checksum = get_u32(bytes.data() + 16);
  return true;
}

struct BlockDecoder::Impl {
  ZSTD_DCtx* zstd = ZSTD_createDCtx();
  std::vector<std::uint8_t> raw;
};

BlockDecoder::BlockDecoder() : impl_(std::make_unique<Impl>()) {}
BlockDecoder::~BlockDecoder() {
  ZSTD_freeDCtx(impl_->zstd);
}

Result<std::span<const std::uint8_t>> BlockDecoder::decode(const BlockHeader& header,
                                                           std::span<const std::uint8_t> stored) {
  if (checksum(stored) != header.checksum)
    return Status(ErrorCode::kCorrupt, "its checksum does not match its contents");
  if (header.codec == Codec::kRaw) {
    if (header.raw != header.stored)
      return Status(ErrorCode::kCorrupt, "its two sizes differ though it is not compressed");
    return stored;
  }
  impl_->raw.resize(header.raw);
  std::size_t got = 0;
  bool ok = false;
  if (header.codec == Codec::kZstd) {
    got = ZSTD_decompressDCtx(impl_->zstd, impl_->raw.data(), impl_->raw.size(), stored.data(),
                              stored.size());
    ok = ZSTD_isError(got) == 0;
  } else if (header.codec == Codec::kZlib) {
    uLongf size = header.raw;
    ok = ::uncompress(impl_->raw.data(), &size, stored.data(), static_cast<uLong>(stored.size())) ==
         Z_OK;
    got = size;
  } else {
    return Status(ErrorCode::kUnsupported, "it is compressed by method " +
                                               std::to_string(static_cast<int>(header.codec)) +
                                               ", which is unknown here");
  }
  if (!ok || got != header.raw)
    return Status(ErrorCode::kCorrupt, "it does not decompress to the size it claims");
  return std::span<const std::uint8_t>(impl_->raw);
}

struct BlockFile::Impl {
  std::filesystem::path path;
  int fd = -1;
  std::uint64_t size = 0;
  Status failure;
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  std::vector<std::uint8_t> buffer;  // header and stored payload, for a single write
};

BlockFile::BlockFile() : impl_(std::make_unique<Impl>()) {}
BlockFile::~BlockFile() {
  abandon();
  ZSTD_freeCCtx(impl_->zstd);
}

void BlockFile::abandon() {
  if (impl_->fd >= 0) ::close(impl_->fd);
  impl_->fd = -1;
}

std::uint64_t BlockFile::size() const {
  return impl_->size;
}

Status BlockFile::create(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    const int reason = errno;
    return {reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
            "Cannot create trace " + path.string() + ": " + system_reason(reason)};
  }
  return take(fd, path);
}

Status BlockFile::take(int fd, const std::filesystem::path& path) {
  impl_->path = path;
  impl_->fd = fd;
  std::array<std::uint8_t, kFileHeaderSize> header{};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  put_u32(header.data() + 8, kVersion);
  return write_all(header);
}

Status BlockFile::write_all(std::span<const std::uint8_t> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(impl_->fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      // Readers accept an incomplete block, but a whole one is better. A device or pipe cannot be
      // truncated.
      if (::ftruncate(impl_->fd, static_cast<off_t>(impl_->size)) != 0) {
      }
      impl_->failure = Status(ErrorCode::kIo, "Cannot write trace " + impl_->path.string() + ": " +
                                                  system_reason(reason));
      return impl_->failure;
    }
    done += static_cast<std::size_t>(n);
  }
  impl_->size += bytes.size();
  return {};
}

Status BlockFile::append(BlockType type, std::span<const std::uint8_t> payload) {
  Impl& self = *impl_;
  NEAP_TRY(self.failure);
  if (payload.size() > kMaxBlockSize)
    return {ErrorCode::kInternal,
            "A trace block of " + to_string(Bytes(payload.size())) + " is over the format's limit"};
  const std::size_t bound = std::max(ZSTD_compressBound(payload.size()), payload.size());
  if (self.buffer.size() < kBlockHeaderSize + bound) self.buffer.resize(kBlockHeaderSize + bound);
  std::uint8_t* const body = self.buffer.data() + kBlockHeaderSize;
  Codec codec = Codec::kRaw;
  std::size_t stored = payload.size();
  if (payload.size() >= kSmallestCompressed) {
    const std::size_t n =
        ZSTD_compressCCtx(self.zstd, body, bound, payload.data(), payload.size(), 1);
    if (ZSTD_isError(n) == 0 && n < payload.size()) {
      codec = Codec::kZstd;
      stored = n;
    }
  }
  if (codec == Codec::kRaw && !payload.empty()) std::memcpy(body, payload.data(), payload.size());
  std::uint8_t* const header = self.buffer.data();
  put_u32(header, kBlockMagic);
  header[4] = static_cast<std::uint8_t>(type);
  header[5] = static_cast<std::uint8_t>(codec);
  header[6] = header[7] = 0;
  put_u32(header + 8, static_cast<std::uint32_t>(stored));
  put_u32(header + 12, static_cast<std::uint32_t>(payload.size()));
  put_u32(header + 16, checksum({body, stored}));
  put_u32(header + 20, checksum({header, 20}));
  return write_all({header, kBlockHeaderSize + stored});
}

Status BlockFile::close() {
  if (impl_->fd < 0) return impl_->failure;
  if (impl_->failure.ok() && ::fsync(impl_->fd) != 0 && errno != EINVAL) {
    impl_->failure = Status(
        ErrorCode::kIo, "Cannot write trace " + impl_->path.string() + ": " + system_reason(errno));
  }
  const int result = ::close(impl_->fd);
  impl_->fd = -1;
  if (result != 0 && impl_->failure.ok())
    impl_->failure = Status(
        ErrorCode::kIo, "Cannot write trace " + impl_->path.string() + ": " + system_reason(errno));
  return impl_->failure;
}

}  // namespace neap::trace::wire
