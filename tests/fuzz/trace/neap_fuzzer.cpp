// Neap's own blocks with right sizes and checksums around payloads of any bytes: what the checksums
// keep the other fuzzer from reaching. Input: block type, length (2 bytes), payload, and so on.
#include <algorithm>
#include <vector>

#include "check.h"
#include "trace/reader.h"
#include "trace/wire_format.h"

namespace {

void put_u32(std::vector<std::uint8_t>& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace wire = neap::trace::wire;
  std::vector<std::uint8_t> file(wire::kMagic.begin(), wire::kMagic.end());
  put_u32(file, wire::kVersion);
  put_u32(file, 0);
  while (size >= 3) {
    const std::size_t claimed = data[1] + std::size_t{data[2]} * 256;
    const std::size_t length = std::min(size - 3, claimed);
    const std::span<const std::uint8_t> payload(data + 3, length);
    std::vector<std::uint8_t> header;
    put_u32(header, wire::kBlockMagic);
    put_u32(header, data[0]);
    put_u32(header, static_cast<std::uint32_t>(length));
    put_u32(header, static_cast<std::uint32_t>(length));
    put_u32(header, wire::checksum(payload));
    put_u32(header, wire::checksum(header));
    file.insert(file.end(), header.begin(), header.end());
    file.insert(file.end(), payload.begin(), payload.end());
    data += 3 + length;
    size -= 3 + length;
  }
  const auto r = neap::trace::read_bytes(file, "fuzz", {.memory_limit = neap::Bytes(256 << 20)});
  if (r.ok()) neap::trace::check(*r);
  return 0;
}
