#include <cstring>
#include <random>
#include <thread>

#include "base/format.h"
#include "bench.h"

namespace neap::bench {
namespace {

using arena::Arena;
using arena::Policy;
using device::Address;
using device::Device;

const std::vector<std::string> kTag = {"tag"};

/// 198 regions of a 7B model's tensors: 15.2 GB, from norms to the embedding.
std::vector<Bytes> weight_sizes(const Setup& setup) {
  std::vector<Bytes> sizes;
  const auto add = [&](std::uint64_t elements) {
    sizes.push_back(std::max(Bytes(2 * elements / setup.divide), Bytes(4096)));
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

/// A plain loop over the driver's calls: what a program without an arena would write.
class PlainLoop {
 public:
  PlainLoop(Device& device, std::uint64_t handles, Bytes each)
      : device_(device), each_(each), count_(handles) {
    at_ = must(device_.reserve(each * handles, Bytes(0)));
  }
  PlainLoop(const PlainLoop&) = delete;
  PlainLoop& operator=(const PlainLoop&) = delete;
  ~PlainLoop() {
    release();
    must(device_.unreserve(at_, each_ * count_));
  }
  void create() {
    for (std::uint64_t i = 0; i < count_; ++i) pages_.push_back(must(device_.create(each_)));
  }
  void map() {
    for (std::uint64_t i = 0; i < count_; ++i)
      must(device_.map(at_ + (each_ * i).count(), pages_[i]));
    must(device_.set_access(at_, each_ * count_));
  }
  void unmap() { must(device_.unmap(at_, each_ * count_)); }
  void release() {
    for (const auto page : pages_) must(device_.release(page));
    pages_.clear();
  }

 private:
  Device& device_;
  Bytes each_;
  std::uint64_t count_;
  Address at_ = 0;
  std::vector<device::PageId> pages_;
};

/// Between pause and resume, where another tenant would work. The driver clears released memory in
/// the background; who creates sooner waits for it.
using Rest = std::chrono::milliseconds;
constexpr Rest kNoRest{0};
constexpr Rest kTenant{500};

void plain_discard(const Setup& setup, const std::string& name, std::uint64_t handles, Bytes each,
                   bool release, Rest rest = kNoRest) {
  const auto device = open_device(setup);
  PlainLoop loop(*device, handles, each);
  loop.create();
  loop.map();
  Series pause, resume;
  for (int i = 0; i < setup.cycles + 2; ++i) {
    const Timer out;
    must(device->synchronize());
    loop.unmap();
    if (release) loop.release();
    const double out_ms = out.ms();
    std::this_thread::sleep_for(rest);
    const Timer in;
    if (release) loop.create();
    loop.map();
    if (i >= 2) {
      pause.add(out_ms);
      resume.add(in.ms());
    }
  }
  loop.unmap();
  const Json extra = {{"handles", handles}, {"handle_bytes", each.count()}};
  report(setup, name, "plain loop pause", "ms", pause, extra);
  report(setup, name, "plain loop resume", "ms", resume, extra);
}

void arena_discard(const Setup& setup, const std::string& name, std::uint64_t regions, Bytes each,
                   bool release, Rest rest = kNoRest) {
  const auto device = open_device(setup);
  auto arena = must(Arena::make(*device));
  const Timer creation;
  for (std::uint64_t i = 0; i < regions; ++i) must(arena->create("tag", each));
  Series create;
  create.add(creation.ms());
  arena::PauseOptions options;
  options.release_pages = release;
  Series pause, resume;
  for (int i = 0; i < setup.cycles + 2; ++i) {
    const Timer out;
    must(arena->pause(kTag, options));
    const double out_ms = out.ms();
    std::this_thread::sleep_for(rest);
    const Timer in;
    must(arena->resume(kTag));
    if (i >= 2) {
      pause.add(out_ms);
      resume.add(in.ms());
    }
  }
  const Json extra = {{"regions", regions}, {"region_bytes", each.count()}};
  report(setup, name, "create", "ms", create, extra);
  report(setup, name, "pause", "ms", pause, extra);
  report(setup, name, "resume", "ms", resume, extra);
}

/// Random bytes for regions: one buffer, begun at a place of each region's own.
class Contents {
 public:
  Contents(Device& device, Bytes piece) : device_(device), words_(piece.count() / 8 + kShifts) {
    std::mt19937_64 random(7);
    for (auto& word : words_) word = random();
    found_.resize(piece.count() / 8);
  }
  void write(const arena::RegionInfo& region) {
    for_each_piece(region, [&](Address at, Bytes size, std::uint64_t* words) {
      const device::Copy copy{at, words, size};
      must(device_.copy_to_device({&copy, 1}));
    });
  }
  bool check(const arena::RegionInfo& region) {
    bool same = true;
    for_each_piece(region, [&](Address at, Bytes size, const std::uint64_t* words) {
      const device::Copy copy{at, found_.data(), size};
      must(device_.copy_to_host({&copy, 1}));
      same = same && std::memcmp(found_.data(), words, size.count()) == 0;
    });
    return same;
  }

 private:
  static constexpr std::uint64_t kShifts = 1 << 16;
  template <class F>
  void for_each_piece(const arena::RegionInfo& region, F&& visit) {
    const Bytes most(found_.size() * 8);
    std::uint64_t shift = static_cast<std::uint64_t>(region.id) * 7919;
    for (Bytes at; at < region.size; at += most, shift += 31)
      visit(region.address + at.count(), std::min(most, region.size - at),
            words_.data() + shift % kShifts);
  }
  Device& device_;
  std::vector<std::uint64_t> words_, found_;
};

void must_match(Contents& contents, const std::vector<arena::RegionInfo>& regions) {
  for (const auto& region : regions)
    if (!contents.check(region))
      fail({ErrorCode::kCorrupt, "a region's contents changed over its cycles"});
}

std::vector<arena::RegionInfo> create_weights(const Setup& setup, Arena& arena, const char* tag,
                                              Bytes& total) {
  std::vector<arena::RegionInfo> regions;
  for (const Bytes size : weight_sizes(setup)) {
    regions.push_back(must(arena.create(tag, size, Policy::kHost)));
    total += regions.back().size;
  }
  return regions;
}

double rate(Bytes bytes, double ms) {
  return static_cast<double>(bytes.count()) / 1e6 / ms;
}

}  // namespace

void run_discard(const Setup& setup) {
  const Bytes all = 64_GiB / setup.divide;
  const auto handle = std::max(512_MiB / setup.divide, 2_MiB);
  plain_discard(setup, "discard_kept", all / handle, handle, false);
  arena_discard(setup, "discard_kept", 1, all, false);
  arena_discard(setup, "discard_kept_64", 64, all / 64, false);
  plain_discard(setup, "discard_released", all / handle, handle, true);
  arena_discard(setup, "discard_released", 1, all, true);
  plain_discard(setup, "discard_released_rest", all / handle, handle, true, kTenant);
  arena_discard(setup, "discard_released_rest", 1, all, true, kTenant);
  const auto small = std::max(32_MiB / setup.divide, 2_MiB);
  plain_discard(setup, "discard_2048", std::min<std::uint64_t>(2048, all / small), small, false);
  arena_discard(setup, "discard_2048", std::min<std::uint64_t>(2048, all / small), small, false);
}

void run_backup(const Setup& setup) {
  const auto device = open_device(setup);
  Series first_pause, first_resume, pause, resume, pause_rate, resume_rate;
  Bytes total;
  for (int fresh = 0; fresh < 3; ++fresh) {
    auto arena = must(Arena::make(*device));
    total = Bytes(0);
    const auto regions = create_weights(setup, *arena, "tag", total);
    Contents contents(*device, 64_MiB);
    for (const auto& region : regions) contents.write(region);
    must(device->synchronize());
    for (int i = 0; i < setup.cycles / 2 + 2; ++i) {
      const Timer out;
      must(arena->pause(kTag));
      const double out_ms = out.ms();
      const Timer in;
      must(arena->resume(kTag));
      const double in_ms = in.ms();
      if (i == 0) {
        first_pause.add(out_ms);
        first_resume.add(in_ms);
      } else if (i > 1) {
        pause.add(out_ms);
        resume.add(in_ms);
        pause_rate.add(rate(total, out_ms));
        resume_rate.add(rate(total, in_ms));
      }
    }
    must_match(contents, regions);
  }
  const Json extra = {{"bytes", total.count()}, {"regions", weight_sizes(setup).size()}};
  report(setup, "backup", "first pause", "ms", first_pause, extra);
  report(setup, "backup", "first resume", "ms", first_resume, extra);
  report(setup, "backup", "pause", "ms", pause, extra);
  report(setup, "backup", "resume", "ms", resume, extra);
  report(setup, "backup", "pause rate", "GB/s", pause_rate, extra);
  report(setup, "backup", "resume rate", "GB/s", resume_rate, extra);

  // The ceiling: the same bytes between two ranges that stay as they are.
  auto arena = must(Arena::make(*device));
  const auto whole = must(arena->create("tag", total, Policy::kHost));
  must(arena->pause(kTag));
  auto* host = static_cast<std::byte*>(const_cast<void*>(arena->host_copy(whole.id)));
  must(arena->resume(kTag));
  auto queue = must(device->make_copy_queue());
  Series down, up;
  for (int i = 0; i < setup.cycles; ++i) {
    const auto copy_all = [&](bool to_host) {
      const Timer timer;
      constexpr Bytes kPiece = 64_MiB;
      for (Bytes at; at < total; at += kPiece) {
        const device::Copy copy{whole.address + at.count(), host + at.count(),
                                std::min(kPiece, total - at)};
        must(to_host ? queue->to_host(copy) : queue->to_device(copy));
      }
      must(queue->drain());
      return rate(total, timer.ms());
    };
    down.add(copy_all(true));
    up.add(copy_all(false));
  }
  report(setup, "backup", "plain copy to host", "GB/s", down, extra);
  report(setup, "backup", "plain copy to device", "GB/s", up, extra);
}

void run_exchange(const Setup& setup) {
  const auto device = open_device(setup);
  auto arena = must(Arena::make(*device));
  const std::vector<std::string> a = {"a"}, b = {"b"};
  Bytes total;
  auto regions = create_weights(setup, *arena, "a", total);
  Contents contents(*device, 64_MiB);
  for (const auto& region : regions) contents.write(region);
  must(arena->pause(a));
  const auto others = create_weights(setup, *arena, "b", total);
  for (const auto& region : others) contents.write(region);
  Series time, sum;
  for (int i = 0; i < setup.cycles + 2; ++i) {
    const Timer timer;
    must(i % 2 == 0 ? arena->exchange(b, a) : arena->exchange(a, b));
    const double ms = timer.ms();
    if (i >= 2) {
      time.add(ms);
      sum.add(rate(total, ms));
    }
  }
  must(arena->resume(a));
  must(arena->resume(b));
  must_match(contents, regions);
  must_match(contents, others);
  const Json extra = {{"bytes", total.count()}};
  report(setup, "exchange", "time", "ms", time, extra);
  report(setup, "exchange", "sum of both directions", "GB/s", sum, extra);
}

void run_lookup(const Setup& setup) {
  const auto device = open_device(setup);
  auto arena = must(Arena::make(*device));
  std::vector<arena::RegionInfo> regions;
  const Bytes each = std::max(4_MiB / setup.divide, 2_MiB);
  for (std::uint64_t i = 0; i < 2048 && each * (i + 1) < device->info().capacity / 2; ++i)
    regions.push_back(must(arena->create("weights", each)));
  std::mt19937_64 random(1);
  std::vector<Address> asked(1 << 16);
  for (auto& at : asked) {
    const auto& region = regions[random() % regions.size()];
    at = region.address + random() % region.size.count();
  }
  Series find;
  for (int i = 0; i < setup.cycles; ++i) {
    const Timer timer;
    std::uint64_t sum = 0;
    for (const Address at : asked) sum += static_cast<std::uint64_t>(arena->find(at)->id);
    const double ns = timer.ms() * 1e6 / static_cast<double>(asked.size());
    if (sum == 0) fail({ErrorCode::kInternal, "no region was found"});
    find.add(ns);
  }
  report(setup, "lookup", "find", "ns", find, {{"regions", regions.size()}});

  // One region created and destroyed, its page from the store, against the same driver calls.
  Series ours, plain;
  const Address at = must(device->reserve(each, Bytes(0)));
  const auto page = must(device->create(each));
  for (int i = 0; i < setup.cycles * 50; ++i) {
    const Timer timer;
    const auto region = must(arena->create("weights", each));
    must(arena->destroy(region.id));
    ours.add(timer.ms() * 1e3);
    const Timer again;
    must(device->map(at, page));
    must(device->set_access(at, each));
    must(device->unmap(at, each));
    plain.add(again.ms() * 1e3);
  }
  must(device->release(page));
  must(device->unreserve(at, each));
  report(setup, "lookup", "create and destroy", "us", ours);
  report(setup, "lookup", "plain map, access, unmap", "us", plain);
}

}  // namespace neap::bench
