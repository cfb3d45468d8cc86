#include "arena/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/parallel_for.h"

namespace neap::arena {
namespace {

constexpr std::uint64_t kHuge = 2ull << 20;
constexpr Bytes kDiscarded = 64_MiB;  // freed per madvise call

std::optional<std::uint64_t> number_after(const std::string& text, std::string_view key) {
  const std::size_t found = text.find(key);
  if (found == std::string::npos) return std::nullopt;
  const std::size_t digit = text.find_first_of("0123456789", found + key.size());
  if (digit == std::string::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto end = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  if (end.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> number_in(const char* path, std::string_view key) {
  const auto text = read_file(path);
  if (!text.ok()) return std::nullopt;
  return number_after(*text, key);
}

/// Free memory under the cgroup's limit. Reclaimable file cache counts as free.
std::optional<std::uint64_t> cgroup_room() {
  struct Files {
    const char *limit, *used, *stat;
    const char* cache_key;
  };
  constexpr Files kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
       "inactive_file "},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "}};
  for (const Files& files : kVersions) {
    const auto limit = number_in(files.limit, "");
    const auto used = number_in(files.used, "");
    if (!limit || !used) continue;  // "max" has no digits and means no limit
    const std::uint64_t cache = number_in(files.stat, files.cache_key).value_or(0);
    return *limit - std::min(*limit, *used - std::min(*used, cache));
  }
  return std::nullopt;
}

}  // namespace

Bytes available_host_memory() {
  std::uint64_t room = ~0ull;
  if (const auto kib = number_in("/proc/meminfo", "MemAvailable:")) room = *kib << 10;
  if (const auto cgroup = cgroup_room()) room = std::min(room, *cgroup);
  return Bytes(room);
}

Result<std::byte*> map_host(Bytes size) {
  // Aligned to huge pages, else the kernel uses small ones at both ends.
  const std::size_t room = size.count() + kHuge;
  void* start = ::mmap(nullptr, room, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    return Status::driver(ErrorCode::kOutOfHostMemory,
                          format("cannot map {} of host memory: {}", size, system_reason(errno)),
                          errno);
  auto* low = static_cast<std::byte*>(start);
  const auto address = reinterpret_cast<std::uint64_t>(start);
  auto* at = low + ((address + kHuge - 1) / kHuge * kHuge - address);
  if (at > low) ::munmap(low, static_cast<std::size_t>(at - low));
  std::byte* end = at + size.count();
  if (low + room > end) ::munmap(end, static_cast<std::size_t>(low + room - end));
  ::madvise(at, size.count(), MADV_HUGEPAGE);
  // A forked child does not use backups, and pinned pages must not become copy-on-write.
  ::madvise(at, size.count(), MADV_DONTFORK);
  return at;
}

void unmap_host(std::byte* at, Bytes size, unsigned threads) {
  // One thread frees a GiB of huge pages in 4 ms. madvise needs the address space's lock only
  // shared, and munmap then has nothing left to free.
  if (threads > 1 && size / kDiscarded > 1) {
    parallel_for((size + kDiscarded - 1_B) / kDiscarded, threads, [&](std::size_t piece) {
      const Bytes from = kDiscarded * piece;
      ::madvise(at + from.count(), std::min(kDiscarded, size - from).count(), MADV_DONTNEED);
    });
  }
  ::munmap(at, size.count());
}

Status populate_host(std::byte* at, Bytes size) {
  // First write once to each huge page: a page fault holds the address space's lock for less time
  // than madvise does. The calls below populate what has no huge pages.
  for (std::uint64_t i = 0; i < size.count(); i += kHuge)
    *reinterpret_cast<volatile unsigned char*>(at + i) = 0;
#ifdef MADV_POPULATE_WRITE
  for (int tries = 0; tries < 3; ++tries) {
    if (::madvise(at, size.count(), MADV_POPULATE_WRITE) == 0) return {};
    if (errno != EAGAIN && errno != EINTR) break;
  }
  if (errno != EINVAL)
    return Status::driver(ErrorCode::kOutOfHostMemory,
                          format("cannot take {} of host memory: {}", size, system_reason(errno)),
                          errno);
#endif
  const auto step = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t i = 0; i < size.count(); i += step)
    *reinterpret_cast<volatile unsigned char*>(at + i) = 0;
  return {};
}

}  // namespace neap::arena
