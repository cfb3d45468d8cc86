// Pause and resume of memory whose contents are discarded.
#include <array>
#include <cstring>
#include <thread>

#include "arena/arena.h"
#include "base/format.h"
#include "bench/cases.h"
#include "bench/plain.h"

namespace neap::bench {
namespace {

using arena::Arena;

/// Idle times that stand for other work. The driver clears released memory in the background; a
/// caller that creates pages earlier waits for it.
struct Rest {
  std::chrono::milliseconds before{0};   ///< between resume and pause
  std::chrono::milliseconds between{0};  ///< between pause and resume
};

struct Shape {
  std::string name;
  std::uint64_t regions = 1;
  Bytes region;
  std::uint64_t handles = 1;  ///< handles of the plain loop
  Bytes handle;
  bool release = false;
  Rest rest;
};

struct Times {
  Series pause, resume;
};

/// Times pause and resume of each cycle. The first two cycles are warm-up.
Result<Times> measure(const Bench& bench, const Rest& rest, const std::function<Status()>& pause,
                      const std::function<Status()>& resume) {
  Times times;
  for (int i = 0; i < bench.cycles() + 2; ++i) {
    std::this_thread::sleep_for(rest.before);
    const Timer out;
    NEAP_TRY(pause());
    const double out_ms = out.ms();
    std::this_thread::sleep_for(rest.between);
    const Timer in;
    NEAP_TRY(resume());
    const double in_ms = in.ms();
    if (i < 2) continue;
    times.pause.add(out_ms);
    times.resume.add(in_ms);
  }
  return times;
}

Result<Times> plain(const Bench& bench, const Shape& shape) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto loop, PlainLoop::make(*device, shape.handles, shape.handle));
  NEAP_TRY(loop->create());
  NEAP_TRY(loop->map());
  return measure(
      bench, shape.rest,
      [&]() -> Status {
        NEAP_TRY(device->synchronize());
        NEAP_TRY(loop->unmap());
        return shape.release ? loop->release() : Status();
      },
      [&]() -> Status {
        if (shape.release) NEAP_TRY(loop->create());
        return loop->map();
      });
}

/// Writes and reads both ends of the region to check that it has its own memory.
Status check_usable(device::Device& device, const arena::RegionInfo& region) {
  std::array<std::byte, 4096> written{}, read{};
  std::memset(written.data(), static_cast<int>(static_cast<std::uint64_t>(region.id) & 0xff),
              written.size());
  const device::Address at = region.address + region.size.count() - written.size();
  const device::Copy out{at, written.data(), Bytes(written.size())};
  const device::Copy back{at, read.data(), Bytes(read.size())};
  NEAP_TRY(device.copy_to_device({&out, 1}));
  NEAP_TRY(device.copy_to_host({&back, 1}));
  if (written == read) return {};
  return {ErrorCode::kInternal,
          format("a resumed region at {:#x} does not keep what is written", region.address)};
}

Result<Times> ours(const Bench& bench, const Shape& shape) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto arena, Arena::make(*device));
  std::vector<arena::RegionInfo> regions;
  for (std::uint64_t i = 0; i < shape.regions; ++i) {
    NEAP_TRY_ASSIGN(arena::RegionInfo region, arena->create("tag", shape.region));
    regions.push_back(std::move(region));
  }
  arena::PauseOptions options;
  options.release_pages = shape.release;
  NEAP_TRY(arena->pause(kTag, options).status());
  NEAP_TRY(arena->resume(kTag).status());
  for (const auto& region : regions) NEAP_TRY(check_usable(*device, region));
  return measure(
      bench, shape.rest, [&] { return arena->pause(kTag, options).status(); },
      [&] { return arena->resume(kTag).status(); });
}

Status run_shape(Bench& bench, const Shape& shape) {
  NEAP_TRY_ASSIGN(const Times limit, plain(bench, shape));
  NEAP_TRY_ASSIGN(const Times times, ours(bench, shape));
  const Json detail = {{"regions", shape.regions},
                       {"region_bytes", shape.region.count()},
                       {"handles", shape.handles},
                       {"handle_bytes", shape.handle.count()},
                       {"rest_before_ms", shape.rest.before.count()},
                       {"rest_between_ms", shape.rest.between.count()}};
  const std::string from = format("plain loop, {} handles of {}", shape.handles, shape.handle);
  bench.add({shape.name, "pause", "ms", Better::kLess, times.pause, limit.pause, from, detail});
  bench.add({shape.name, "resume", "ms", Better::kLess, times.resume, limit.resume, from, detail});
  return {};
}

Shape one_region(const Bench& bench, std::string name, bool release, Rest rest = {}) {
  const Bytes all = bench.scaled(64_GiB, 16_MiB);
  const Bytes handle = std::clamp(round_down(all / 16, 2_MiB), 2_MiB, 512_MiB);
  return {std::move(name), 1, all, all / handle, handle, release, rest};
}

}  // namespace

Status run_discard(Bench& bench) {
  NEAP_TRY(run_shape(bench, one_region(bench, "discard_kept", false)));
  Shape many = one_region(bench, "discard_kept_64", false);
  many.regions = 64;
  many.region = many.region / 64;
  return run_shape(bench, many);
}

Status run_released(Bench& bench) {
  NEAP_TRY(run_shape(bench, one_region(bench, "discard_released", true)));
  if (!bench.cuda()) return {};  // the CPU device clears nothing in the background
  using std::chrono::milliseconds;
  NEAP_TRY(run_shape(bench, one_region(bench, "discard_released_used", true,
                                       {milliseconds(300), milliseconds(0)})));
  return run_shape(bench, one_region(bench, "discard_released_rest", true,
                                     {milliseconds(0), milliseconds(300)}));
}

Status run_many(Bench& bench) {
  const Bytes each = bench.scaled(32_MiB);
  const auto count =
      std::min<std::uint64_t>(2048, bench.scaled(64_GiB, 16_MiB).count() / each.count());
  return run_shape(bench, {"discard_many", count, each, count, each, false, {}});
}

}  // namespace neap::bench
