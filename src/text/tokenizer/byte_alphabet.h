// The alphabet of byte-level vocabularies: a printable character for each byte.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace neap::text {

/// The character of each byte. Printable bytes are their own characters.
[[nodiscard]] const std::array<std::string, 256>& byte_characters();
/// The bytes of a vocabulary token. A token with a character outside of the alphabet has the bytes
/// of its UTF-8.
[[nodiscard]] std::string bytes_of_token(std::string_view token);
/// Spells bytes in the alphabet.
[[nodiscard]] std::string token_of_bytes(std::string_view bytes);

}  // namespace neap::text
