// Shared by the reader and writer of one file and of a folder of shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "model/safetensors.h"

namespace neap::model::detail {

/// A name for a message: a hostile one must not fill the terminal.
[[nodiscard]] std::string shown(std::string_view name);
[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& what);
/// By dtype and shape; throws when they have no size in whole bytes.
[[nodiscard]] std::uint64_t source_bytes(const TensorSource& t);

}  // namespace neap::model::detail
