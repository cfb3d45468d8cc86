// Hashes of files' contents (base/hash.h), used as names in a cache.
//
// Threads   stateless functions.
//
// Failure   Status with the path.
//
// Cost      the disk's speed; 10 GB/s from the page cache.
#pragma once

#include <filesystem>
#include <string>

#include "base/file_version.h"
#include "base/hash.h"
#include "base/status.h"

namespace neap::data {

[[nodiscard]] Result<std::string> hash_of_file(const std::filesystem::path& file);

/// kBusy if the path has another version of a file.
[[nodiscard]] Status check_unchanged(const std::filesystem::path& file, const FileVersion& before);

}  // namespace neap::data
