// PNG files: 8-bit RGB, compressed with zlib.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace neap::report {

/// Compresses `bytes` to zlib's format (RFC 1950), for PNG and the report's payload.
[[nodiscard]] Result<std::string> deflate(std::string_view bytes);
/// Compresses `bytes` to a gzip member (RFC 1952).
[[nodiscard]] Result<std::string> gzip(std::string_view bytes);
/// `pixels` has width * height * 3 bytes, with rows from the top.
[[nodiscard]] Result<std::string> encode_png(std::span<const std::uint8_t> pixels,
                                             std::uint32_t width, std::uint32_t height);

}  // namespace neap::report
