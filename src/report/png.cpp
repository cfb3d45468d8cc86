#include "report/png.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace neap::report {
namespace {

constexpr int kZlibWindow = 15, kGzipWindow = 15 + 16, kMemoryLevel = 9;

Result<std::string> compress_with(std::string_view bytes, int window) {
  z_stream stream{};
  if (::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, window, kMemoryLevel,
                     Z_DEFAULT_STRATEGY) != Z_OK)
    return Status(ErrorCode::kOutOfHostMemory, "zlib cannot start a compression");
  std::string out;
  std::string_view rest = bytes;
  constexpr std::size_t kMostAtOnce = std::numeric_limits<uInt>::max();
  char buffer[1 << 16];
  int result = Z_OK;
  do {
    if (stream.avail_in == 0 && !rest.empty()) {
      const std::size_t now = std::min(rest.size(), kMostAtOnce);
      // zlib's pointer is not const, but zlib only reads.
      stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(rest.data()));
      stream.avail_in = static_cast<uInt>(now);
      rest.remove_prefix(now);
    }
    stream.next_out = reinterpret_cast<Bytef*>(buffer);
    stream.avail_out = sizeof buffer;
    result = ::deflate(&stream, rest.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.append(buffer, sizeof buffer - stream.avail_out);
  } while (result == Z_OK);
  ::deflateEnd(&stream);
  if (result != Z_STREAM_END)
    return Status(ErrorCode::kInternal, format("zlib stopped with code {}", result));
  return out;
}

void put_word(std::string& out, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<char>((word >> shift) & 0xffu));
}

void put_chunk(std::string& out, std::string_view type, std::string_view data) {
  put_word(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out += type;
  out += data;
  put_word(out, static_cast<std::uint32_t>(::crc32_z(
                    0, reinterpret_cast<const Bytef*>(out.data() + begin), out.size() - begin)));
}

}  // namespace

Result<std::string> deflate(std::string_view bytes) {
  return compress_with(bytes, kZlibWindow);
}

Result<std::string> gzip(std::string_view bytes) {
  return compress_with(bytes, kGzipWindow);
}

Result<std::string> encode_png(std::span<const std::uint8_t> pixels, std::uint32_t width,
                               std::uint32_t height) {
  const std::size_t stride = std::size_t{width} * 3;
  if (width == 0 || height == 0 || pixels.size() != stride * height)
    return Status(
        ErrorCode::kInvalidArgument,
        format("a picture of {} x {} pixels cannot have {} bytes", width, height, pixels.size()));
  // Each pixel is stored as the difference to its left neighbour, so flat areas become zeros.
  constexpr std::uint8_t kFilterSub = 1;
  std::string rows;
  rows.reserve((stride + 1) * height);
  for (std::size_t y = 0; y < height; ++y) {
    const std::span<const std::uint8_t> row = pixels.subspan(y * stride, stride);
    rows.push_back(static_cast<char>(kFilterSub));
    for (std::size_t i = 0; i < stride; ++i)
      rows.push_back(static_cast<char>(row[i] - (i >= 3 ? row[i - 3] : 0)));
  }
  NEAP_TRY_ASSIGN(const std::string body, deflate(rows));
  std::string out("\x89PNG\r\n\x1a\n", 8);
  std::string head;
  put_word(head, width);
  put_word(head, height);
  head += std::string_view("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB, no interlace
  put_chunk(out, "IHDR", head);
  put_chunk(out, "IDAT", body);
  put_chunk(out, "IEND", "");
  return out;
}

}  // namespace neap::report
