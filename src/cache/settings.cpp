#include "cache/settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>

#include "base/format.h"

namespace neap::cache {
namespace {

/// A key and its value; a bracketed value keeps its brackets.
struct Entry {
  std::string_view key;
  std::string_view value;
};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

Status bad(std::string_view key, std::string_view value, std::string_view right) {
  return {ErrorCode::kInvalidArgument,
          format("Allocator setting {} has the value \"{}\", it must be {}", key, value, right)};
}

Result<std::vector<Entry>> split_entries(std::string_view text) {
  std::vector<Entry> entries;
  while (!(text = trim(text)).empty()) {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos)
      return Status(ErrorCode::kInvalidArgument,
                    format("Allocator setting \"{}\" has no value, key:value is expected", text));
    const auto key = trim(text.substr(0, colon));
    text = trim(text.substr(colon + 1));
    std::size_t end;
    if (!text.empty() && text.front() == '[') {
      const auto bracket = text.find(']');
      if (bracket == std::string_view::npos) return bad(key, text, "closed by ]");
      end = bracket + 1;
    } else {
      end = std::min(text.find(','), text.size());
    }
    entries.push_back({key, trim(text.substr(0, end))});
    text = trim(text.substr(end));
    if (text.empty()) break;
    if (text.front() != ',')
      return Status(ErrorCode::kInvalidArgument,
                    format("Allocator settings need a comma before \"{}\"", text));
    text.remove_prefix(1);
  }
  return entries;
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<Bytes> mebibytes(const Entry& entry, std::uint64_t at_least) {
  const auto value = number<std::uint64_t>(entry.value);
  if (!value || *value < at_least || *value > (1ull << 40))
    return bad(entry.key, entry.value, format("a number of MiB, at least {}", at_least));
  return Bytes(*value << 20);
}

Result<bool> boolean(const Entry& entry) {
  if (entry.value == "True") return true;
  if (entry.value == "False") return false;
  return bad(entry.key, entry.value, "True or False");
}

Result<double> share(const Entry& entry, bool one_allowed) {
  const auto value = number<double>(entry.value);
  if (!value || !(*value > 0) || *value > 1 || (*value == 1 && !one_allowed))
    return bad(entry.key, entry.value, one_allowed ? "above 0 and at most 1" : "between 0 and 1");
  return *value;
}

Result<std::uint32_t> division(const Entry& entry, std::string_view text) {
  const auto value = number<std::uint32_t>(trim(text));
  if (!value || (*value != 0 && !std::has_single_bit(*value)) || *value > (1u << 20))
    return bad(entry.key, entry.value, "made of divisions that are 0 or a power of two");
  return *value;
}

/// Index of a power of two in MiB: 0 for 1 MiB, 15 for 32 GiB and more.
std::size_t slot_of_mib(std::uint64_t mib) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(mib)) - 1, 15);
}

Status parse_divisions(const Entry& entry, Settings& out) {
  auto& slots = out.roundup_power2_divisions;
  if (entry.value.empty() || entry.value.front() != '[') {
    NEAP_TRY_ASSIGN(const auto all, division(entry, entry.value));
    slots.fill(all);
    return ok_status();
  }
  auto rest = entry.value.substr(1, entry.value.size() - 2);
  bool first = true;
  std::size_t last_slot = 0;
  while (!(rest = trim(rest)).empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto item = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto colon = item.find(':');
    if (colon == std::string_view::npos)
      return bad(entry.key, entry.value, "a list of MiB:divisions, as in [256:1,512:2,>:4]");
    NEAP_TRY_ASSIGN(const auto value, division(entry, item.substr(colon + 1)));
    const auto key = trim(item.substr(0, colon));
    if (key == ">") {
      const std::size_t from = first ? 0 : last_slot + 1;
      for (std::size_t i = from; i < slots.size(); ++i) slots[i] = value;
      if (!trim(rest).empty()) return bad(entry.key, entry.value, "ended by its > entry");
      return ok_status();
    }
    const auto mib = number<std::uint64_t>(key);
    if (!mib || !std::has_single_bit(*mib))
      return bad(entry.key, entry.value, "keyed by powers of two in MiB");
    const auto slot = slot_of_mib(*mib);
    if (first) std::fill(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(slot), value);
    slots[slot] = value;
    first = false;
    last_slot = slot;
  }
  if (first) return bad(entry.key, entry.value, "a list that is not empty");
  return ok_status();
}

/// Keys for other parts of PyTorch; they never change the choice of a block.
constexpr std::string_view kIgnoredKeys[] = {
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "expandable_segments_min_reserve",
};

/// Keys added after PyTorch 2.0.
struct NewKey {
  std::string_view key, since;
  bool PolicyVersion::*known;
};
constexpr NewKey kNewKeys[] = {
    {"expandable_segments", "2.1", &PolicyVersion::expandable_segments_key},
    {"large_segment_size_mb", "2.11", &PolicyVersion::large_segment_size_key},
};

const NewKey* new_key(std::string_view key) {
  const auto* const found = std::find_if(std::begin(kNewKeys), std::end(kNewKeys),
                                         [&](const NewKey& known) { return known.key == key; });
  return found == std::end(kNewKeys) ? nullptr : found;
}

Status apply(const Entry& entry, Settings& out) {
  if (entry.key == "max_split_size_mb") {
    NEAP_TRY_ASSIGN(out.max_split_size, mebibytes(entry, 0));
  } else if (entry.key == "max_non_split_rounding_mb") {
    NEAP_TRY_ASSIGN(out.max_non_split_rounding, mebibytes(entry, 0));
  } else if (entry.key == "garbage_collection_threshold") {
    NEAP_TRY_ASSIGN(out.garbage_collection_threshold, share(entry, false));
  } else if (entry.key == "per_process_memory_fraction") {
    NEAP_TRY_ASSIGN(out.memory_fraction, share(entry, true));
  } else if (entry.key == "expandable_segments") {
    NEAP_TRY_ASSIGN(out.expandable_segments, boolean(entry));
  } else if (entry.key == "roundup_power2_divisions") {
    NEAP_TRY(parse_divisions(entry, out));
  } else if (std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), entry.key) ==
             std::end(kIgnoredKeys)) {
    return {ErrorCode::kInvalidArgument,
            format("Allocator setting \"{}\" is not one that PyTorch knows", entry.key)};
  }
  return ok_status();
}

}  // namespace

PolicyVersion PolicyVersion::for_version(std::string_view version) {
  PolicyVersion policy;
  if (version.empty()) return policy;
  if (version == "ascend") {
    policy.name = "ascend";
    policy.large_segment_size_key = false;
    policy.use_on_oom_first = false;
    policy.padding = 32_B;
    return policy;
  }
  unsigned major = 0;
  unsigned minor = 0;
  const auto dot = version.find('.');
  if (dot != std::string_view::npos) {
    std::from_chars(version.data(), version.data() + dot, major);
    std::from_chars(version.data() + dot + 1, version.data() + version.size(), minor);
  }
  if (major == 2 && minor < 11) {
    policy.name = minor == 0 ? "2.0" : "2.1";
    policy.expandable_segments_key = minor > 0;
    policy.large_segment_size_key = false;
    policy.use_on_oom_first = false;
  } else if (major > 2 || (major == 2 && minor >= 13)) {
    policy.name = "2.13";
    policy.private_pool_reclaims = true;
  }
  return policy;
}

Result<Settings> Settings::parse(std::string_view text, const PolicyVersion& version) {
  Settings out;
  NEAP_TRY_ASSIGN(const auto entries, split_entries(text));
  for (const Entry& entry : entries) {
    const NewKey* const key = new_key(entry.key);
    if (key != nullptr && !(version.*key->known))
      return Status(ErrorCode::kInvalidArgument,
                    format("Allocator setting {} came with PyTorch {}, the policy is that of {}",
                           key->key, key->since, version.name));
  }
  // The segment size is the default of one key and the lower bound of another.
  for (const Entry& entry : entries) {
    if (entry.key != "large_segment_size_mb") continue;
    NEAP_TRY_ASSIGN(out.large_segment_size, mebibytes(entry, 10));
    out.max_non_split_rounding = out.large_segment_size;
  }
  for (const Entry& entry : entries)
    if (entry.key != "large_segment_size_mb") NEAP_TRY(apply(entry, out));
  if (out.max_split_size < out.large_segment_size ||
      (!version.large_segment_size_key && out.max_split_size <= 20_MiB))
    return bad("max_split_size_mb", format("{}", out.max_split_size.count() >> 20),
               format("{} {} MiB", version.large_segment_size_key ? "at least" : "above",
                      out.large_segment_size.count() >> 20));
  return out;
}

std::vector<std::string> needed_versions(std::string_view text) {
  std::vector<std::string> sentences;
  const auto entries = split_entries(text);
  if (!entries.ok()) return sentences;
  for (const Entry& entry : *entries)
    if (const NewKey* const key = new_key(entry.key))
      sentences.push_back(format("{} needs PyTorch {} or later.", key->key, key->since));
  return sentences;
}

std::string Settings::to_string() const {
  const Settings defaults;
  std::vector<std::string> parts;
  if (expandable_segments) parts.emplace_back("expandable_segments:True");
  if (large_segment_size != defaults.large_segment_size)
    parts.push_back(format("large_segment_size_mb:{}", large_segment_size.count() >> 20));
  if (max_split_size != defaults.max_split_size)
    parts.push_back(format("max_split_size_mb:{}", max_split_size.count() >> 20));
  if (max_non_split_rounding != large_segment_size)
    parts.push_back(format("max_non_split_rounding_mb:{}", max_non_split_rounding.count() >> 20));
  if (garbage_collection_threshold > 0)
    parts.push_back(format("garbage_collection_threshold:{}", garbage_collection_threshold));
  const auto& slots = roundup_power2_divisions;
  if (std::all_of(slots.begin(), slots.end(), [&](auto v) { return v == slots[0]; })) {
    if (slots[0] != 0) parts.push_back(format("roundup_power2_divisions:{}", slots[0]));
  } else {
    std::string list;
    for (std::size_t i = 0; i < slots.size(); ++i)
      list += format("{}{}:{}", i == 0 ? "" : ",", 1u << i, slots[i]);
    parts.push_back(format("roundup_power2_divisions:[{}]", list));
  }
  if (memory_fraction > 0)
    parts.push_back(format("per_process_memory_fraction:{}", memory_fraction));
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

std::uint32_t Settings::divisions_for(Bytes size) const {
  const auto log2 = static_cast<int>(std::bit_width(size.count())) - 1;
  return roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
}

Bytes Settings::round(Bytes size) const {
  if (size < kMinBlockSize) return kMinBlockSize;
  const std::uint64_t divisions = divisions_for(size);
  if (divisions <= 1 || size <= kMinBlockSize * divisions) return round_up(size, kMinBlockSize);
  const std::uint64_t count = size.count();
  if (std::has_single_bit(count)) return size;
  const std::uint64_t floor = std::bit_floor(count);
  const std::uint64_t step = floor >> std::countr_zero(divisions);
  if (step == 0) return Bytes(floor << 1);
  return round_up(size, Bytes(step));
}

Bytes Settings::segment_size_for(Bytes rounded) const {
  if (rounded <= kSmallSize) return kSmallSegment;
  if (rounded < kMinLargeAlloc) return large_segment_size;
  return round_up(rounded, kRoundLarge);
}

std::vector<std::string> lint(const Settings& settings, bool uses_private_pools) {
  std::vector<std::string> notes;
  if (settings.expandable_segments && settings.max_split_size != kUnlimited)
    notes.emplace_back(
        "max_split_size_mb with expandable_segments: merged free ranges above the limit serve no "
        "smaller request, so reserved memory can grow without bound.");
  if (settings.garbage_collection_threshold > 0 && settings.memory_fraction == 0)
    notes.emplace_back(
        "garbage_collection_threshold does nothing without a memory fraction: call "
        "torch.cuda.set_per_process_memory_fraction.");
  if (settings.garbage_collection_threshold > 0 && settings.expandable_segments)
    notes.emplace_back(
        "garbage_collection_threshold does nothing with expandable_segments: it frees whole "
        "segments of the ordinary kind only.");
  if (settings.max_non_split_rounding != settings.large_segment_size &&
      settings.max_split_size == kUnlimited)
    notes.emplace_back("max_non_split_rounding_mb does nothing without max_split_size_mb.");
  if (settings.expandable_segments) {
    notes.emplace_back(
        "expandable_segments: tensors sent to other processes by CUDA IPC need torch 2.6 or later "
        "and the fd or fabric handle path.");
    if (uses_private_pools)
      notes.emplace_back(
          "expandable_segments does not serve MemPools that bring an allocator of their own; older "
          "versions refuse the combination.");
  }
  return notes;
}

}  // namespace neap::cache
