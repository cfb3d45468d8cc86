// Parsed PYTORCH_CUDA_ALLOC_CONF, and behaviour that differs between PyTorch versions.
//
// Threads   values.
// Failure   parse names the key and the accepted values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::cache {

/// Sizes that PyTorch fixes at compile time.
inline constexpr Bytes kMinBlockSize = 512_B;
inline constexpr Bytes kSmallSize = 1_MiB;       ///< largest block of the small pool
inline constexpr Bytes kSmallSegment = 2_MiB;    ///< segment (or page) size of the small pool
inline constexpr Bytes kMinLargeAlloc = 10_MiB;  ///< smaller requests share a large segment
inline constexpr Bytes kRoundLarge = 2_MiB;      ///< larger requests get their own segment
inline constexpr Bytes kUnlimited = Bytes(~0ull);
inline constexpr Bytes kMaxRequest = Bytes(1ull << 60);

/// Differences between PyTorch releases. Code reads these fields, not a version number;
/// for_version() sets them.
struct PolicyVersion {
  std::string_view name = "2.11";
  bool expandable_segments_key = true;
  bool large_segment_size_key = true;
  bool use_on_oom_first = true;  ///< use_on_oom pools are tried before cached blocks are released
  bool private_pool_reclaims = false;  ///< a miss in a private pool may release cached blocks
  bool search_after_release = false;   ///< the pool is searched again after the last release
  Bytes padding{0};                    ///< added to a request before rounding (Ascend: 32 B)

  /// Nearest known behaviour for "2.4.1", "2.11.0+cu130", "2.13" or "ascend"; the newest for an
  /// empty text.
  [[nodiscard]] static PolicyVersion for_version(std::string_view version);
};

struct Settings {
  Bytes max_split_size = kUnlimited;
  Bytes max_non_split_rounding = 20_MiB;
  Bytes large_segment_size = 20_MiB;
  double garbage_collection_threshold = 0;  ///< 0 = off
  bool expandable_segments = false;
  /// One entry per power of two from 1 MiB to 32 GiB; 0 and 1 mean multiples of 512 bytes.
  std::array<std::uint32_t, 16> roundup_power2_divisions{};
  double memory_fraction = 0;  ///< set_per_process_memory_fraction; 0 = unset

  /// Parses "max_split_size_mb:128,expandable_segments:True". Missing keys have their defaults.
  /// Keys for pinned memory, capture or the driver are checked and then ignored.
  [[nodiscard]] static Result<Settings> parse(std::string_view text,
                                              const PolicyVersion& version = {});
  /// The shortest text that parse() turns into these settings. memory_fraction is omitted if it is
  /// unset.
  [[nodiscard]] std::string to_string() const;
  bool operator==(const Settings&) const = default;

  [[nodiscard]] std::uint32_t divisions_for(Bytes size) const;
  /// Bytes that a request of `size` bytes occupies.
  [[nodiscard]] Bytes round(Bytes size) const;
  /// Bytes that a miss requests from the source for a block of `rounded` bytes, without expandable
  /// segments.
  [[nodiscard]] Bytes segment_size_for(Bytes rounded) const;
};

/// Releases that know the keys of `text`: one sentence per key added after 2.0.
[[nodiscard]] std::vector<std::string> needed_versions(std::string_view text);

/// Settings that contradict each other or have no effect, one sentence each.
[[nodiscard]] std::vector<std::string> lint(const Settings& settings, bool uses_private_pools);

}  // namespace neap::cache
