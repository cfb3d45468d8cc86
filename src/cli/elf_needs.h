// Which glibc a program or library needs.
//
// Threads   any.
// Failure   kCorrupt for what is not a 64-bit ELF file.
// Cost      reads the file.
#pragma once

#include <compare>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace neap::cli {

struct GlibcVersion {
  int major = 0, minor = 0;
  auto operator<=>(const GlibcVersion&) const = default;
  [[nodiscard]] std::string text() const;
};

/// "2.36" and longer forms; 0.0 for what is not a version.
[[nodiscard]] GlibcVersion parse_glibc_version(std::string_view text);

/// The highest GLIBC_x.y among the file's needed versions; 0.0 where it needs none.
[[nodiscard]] Result<GlibcVersion> glibc_needed(const std::filesystem::path& file);

}  // namespace neap::cli
