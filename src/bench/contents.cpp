#include "bench/contents.h"

#include <cstring>
#include <random>

#include "base/format.h"

namespace neap::bench {
namespace {

constexpr std::uint64_t kShifts = 1 << 16;

}  // namespace

std::vector<Bytes> weight_sizes(const Bench& bench) {
  std::vector<Bytes> sizes;
  const auto add = [&](std::uint64_t elements) {
    sizes.push_back(std::max(Bytes(2 * elements / bench.weights_divide()), Bytes(4096)));
  };
  constexpr std::uint64_t kHidden = 3584, kInner = 18944, kVocabulary = 152064, kKv = 512;
  add(kVocabulary * kHidden);
  add(kVocabulary * kHidden);
  for (int layer = 0; layer < 28; ++layer) {
    add(kHidden * kHidden + kHidden);
    add(2 * (kHidden * kKv + kKv));
    add(kHidden * kHidden);
    add(kHidden * kInner);
    add(kHidden * kInner);
    add(kHidden * kInner);
    add(2 * kHidden);
  }
  return sizes;
}

Result<Weights> create_weights(const Bench& bench, arena::Arena& arena, std::string_view tag,
                               arena::Policy policy) {
  Weights weights;
  for (const Bytes size : weight_sizes(bench)) {
    NEAP_TRY_ASSIGN(arena::RegionInfo region, arena.create(tag, size, policy));
    weights.total += region.size;
    weights.regions.push_back(std::move(region));
  }
  return weights;
}

Contents::Contents(device::Device& device, Bytes piece)
    : device_(device), words_(piece.count() / 8 + kShifts), found_(piece.count() / 8) {
  std::mt19937_64 random(7);
  for (auto& word : words_) word = random();
}

template <class F>
Status Contents::for_each_piece(const arena::RegionInfo& region, F&& visit) {
  const Bytes most(found_.size() * 8);
  std::uint64_t shift = static_cast<std::uint64_t>(region.id) * 7919;
  for (Bytes at; at < region.size; at += most, shift += 31)
    NEAP_TRY(visit(region.address + at.count(), std::min(most, region.size - at),
                   words_.data() + shift % kShifts));
  return {};
}

Status Contents::write(const std::vector<arena::RegionInfo>& regions) {
  for (const auto& region : regions)
    NEAP_TRY(for_each_piece(region, [&](device::Address at, Bytes size, std::uint64_t* words) {
      const device::Copy copy{at, words, size};
      return device_.copy_to_device({&copy, 1});
    }));
  return {};
}

Status Contents::check(const std::vector<arena::RegionInfo>& regions) {
  const auto same = [&](device::Address at, Bytes size, const std::uint64_t* words) -> Status {
    const device::Copy copy{at, found_.data(), size};
    NEAP_TRY(device_.copy_to_host({&copy, 1}));
    if (std::memcmp(found_.data(), words, size.count()) == 0) return {};
    return {ErrorCode::kInternal, format("contents at {:#x} changed over pause and resume", at)};
  };
  for (const auto& region : regions) NEAP_TRY(for_each_piece(region, same));
  return {};
}

}  // namespace neap::bench
