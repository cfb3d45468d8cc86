#include "cli/elf_needs.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/file.h"
#include "base/format.h"

namespace neap::cli {
namespace {

constexpr std::string_view kPrefix = "GLIBC_";
constexpr Bytes kLargestFile(1ULL << 30);

/// A T at `at`, or nothing where the file ends before it does.
template <class T>
std::optional<T> read(std::string_view file, std::uint64_t at) {
  T value;
  if (at > file.size() || file.size() - at < sizeof value) return std::nullopt;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

std::string_view text_at(std::string_view file, const Elf64_Shdr& strings, std::uint64_t offset) {
  const std::uint64_t at = strings.sh_offset + offset;
  if (offset >= strings.sh_size || at >= file.size()) return {};
  const std::string_view rest = file.substr(at, strings.sh_size - offset);
  return rest.substr(0, rest.find('\0'));
}

/// Goes through one section of needed versions: a list of files, each with a list of versions.
std::optional<GlibcVersion> highest(std::string_view file, const Elf64_Shdr& needs,
                                    const Elf64_Shdr& strings) {
  GlibcVersion found;
  std::uint64_t at = needs.sh_offset;
  for (std::uint64_t i = 0; i < needs.sh_info; ++i) {
    const auto library = read<Elf64_Verneed>(file, at);
    if (!library) return std::nullopt;
    std::uint64_t entry_at = at + library->vn_aux;
    for (unsigned k = 0; k < library->vn_cnt; ++k) {
      const auto entry = read<Elf64_Vernaux>(file, entry_at);
      if (!entry) return std::nullopt;
      const std::string_view name = text_at(file, strings, entry->vna_name);
      if (name.starts_with(kPrefix))
        found = std::max(found, parse_glibc_version(name.substr(kPrefix.size())));
      entry_at += entry->vna_next;
    }
    at += library->vn_next;
  }
  return found;
}

}  // namespace

std::string GlibcVersion::text() const {
  return format("{}.{}", major, minor);
}

GlibcVersion parse_glibc_version(std::string_view text) {
  GlibcVersion version;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, version.major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return {};
  if (std::from_chars(first.ptr + 1, end, version.minor).ec != std::errc()) return {};
  return version;
}

Result<GlibcVersion> glibc_needed(const std::filesystem::path& path) {
  NEAP_TRY_ASSIGN(const std::string file, read_file(path, kLargestFile));
  const Status corrupt(ErrorCode::kCorrupt,
                       format("{} is not a whole 64-bit ELF file", path.string()));
  const auto header = read<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64)
    return corrupt;
  const auto section = [&](std::uint64_t index) {
    return read<Elf64_Shdr>(file, header->e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (unsigned i = 0; i < header->e_shnum; ++i) {
    const auto needs = section(i);
    if (!needs) return corrupt;
    if (needs->sh_type != SHT_GNU_verneed) continue;
    const auto strings = section(needs->sh_link);
    const auto found = strings ? highest(file, *needs, *strings) : std::nullopt;
    if (!found) return corrupt;
    return *found;
  }
  return GlibcVersion{};
}

}  // namespace neap::cli
