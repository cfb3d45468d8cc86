// The alphabet of byte-level vocabularies: a printable character for each byte.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace neap::text {

/// Byte <-> character of the vocabulary's alphabet (printable bytes stand for themselves).
[[nodiscard]] const std::array<std::string, 256>& byte_characters();
/// Bytes that a vocabulary token stands for. A token with a character outside the alphabet stands
/// for its own UTF-8.
[[nodiscard]] std::string bytes_of_token(std::string_view token);
/// The alphabet's spelling of bytes.
[[nodiscard]] std::string token_of_bytes(std::string_view bytes);

}  // namespace neap::text
