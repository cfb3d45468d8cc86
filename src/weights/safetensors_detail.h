// Helpers shared by the reader, the writer and the folder of shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

namespace neap::weights::detail {

/// Shortens a name for a message: a hostile name must not fill the terminal.
[[nodiscard]] std::string shown(std::string_view name);
[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& what);
[[noreturn]] void io_error(std::string_view verb, const std::filesystem::path& path, int number);
/// Reads the exact number of bytes; else an error that says where the file ended.
void read_exactly(int fd, const std::filesystem::path& path, std::uint64_t at,
                  std::span<std::byte> out);
/// Writes "[2, 3]", cut after 16 dimensions.
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);
/// Bytes by dtype and shape. Nothing if the product overflows or is not a whole number of bytes.
[[nodiscard]] std::optional<std::uint64_t> bytes_by_shape(const std::string& dtype,
                                                          const std::vector<std::int64_t>& shape);
/// As bytes_by_shape, for a tensor to be written; throws.
[[nodiscard]] std::uint64_t bytes_of(const TensorInfo& tensor);

// The checksums are one text in the metadata. It begins with kChecksumsForm. Then follow 16
// hexadecimal digits of the header's hash and of each tensor's, in the order of their data. The
// header is hashed with zeros in place of all digits. A tensor's hash is the hash of the hashes of
// its pieces.
constexpr std::string_view kChecksumsKey = "neap.checksums";
constexpr std::string_view kChecksumsForm = "xxh3-64 of pieces of 16 MiB:";
constexpr std::size_t kChecksumDigits = 16;
[[nodiscard]] std::size_t pieces_of(std::uint64_t bytes);
[[nodiscard]] std::uint64_t hash_of_pieces(const std::vector<std::uint64_t>& pieces);
/// The text with zeros for all digits.
[[nodiscard]] std::string blank_checksums(std::size_t tensors);
[[nodiscard]] std::string checksums_text(std::uint64_t header,
                                         const std::vector<std::uint64_t>& tensors);

}  // namespace neap::weights::detail
