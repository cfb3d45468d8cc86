// Pause and resume with contents in host memory: the first time, and from then on.
#include "arena/arena.h"
#include "base/format.h"
#include "bench/cases.h"
#include "bench/contents.h"
#include "bench/limits.h"
#include "bench/plain.h"

namespace neap::bench {
namespace {

using arena::Arena;
using arena::Policy;

constexpr Bytes kChunk = 128_MiB;  // pinned at a time, as the arena does

struct Parts {
  Series touch, pin;  ///< ms
};

/// The two parts of a first pause that a copy alone does not have, each on its own.
Result<Parts> measure_parts(const Bench& bench, device::Device& device, Bytes size) {
  Parts parts;
  for (int i = 0; i < std::clamp(bench.cycles() / 4, 1, 5) + 1; ++i) {
    NEAP_TRY_ASSIGN(const auto room, HostRoom::make(size));
    const Timer touch;
    NEAP_TRY(room->touch(touching_threads()));
    if (i > 0) parts.touch.add(touch.ms());  // the first makes the machine get its memory
    const Timer pin;
    for (Bytes at; at < size; at += kChunk)
      NEAP_TRY(device.register_host(room->at + at.count(), std::min(kChunk, size - at)));
    if (i > 0) parts.pin.add(pin.ms());
    for (Bytes at; at < size; at += kChunk) NEAP_TRY(device.unregister_host(room->at + at.count()));
  }
  return parts;
}

}  // namespace

Status run_backup(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  Bytes total;
  for (const Bytes size : weight_sizes(bench)) total += round_up(size, device->info().granularity);
  NEAP_TRY(bench.need_host(bench.cuda() ? total : 2 * total, "backups of the weights"));
  NEAP_TRY_ASSIGN(const Parts parts, measure_parts(bench, *device, total));
  Series down, up;
  {
    NEAP_TRY_ASSIGN(const auto copies, PlainCopies::make(*device, total));
    for (int i = 0; i < bench.cycles(); ++i) {
      NEAP_TRY_ASSIGN(const double out, copies->to_host());
      NEAP_TRY_ASSIGN(const double in, copies->to_device());
      down.add(out);
      up.add(in);
    }
  }

  Series first_pause, first_resume, pause_rate, resume_rate;
  const int fresh = std::clamp(bench.cycles() / 3, 1, 6);
  for (int i = 0; i < fresh; ++i) {
    NEAP_TRY_ASSIGN(const auto arena, Arena::make(*device));
    NEAP_TRY_ASSIGN(const Weights weights, create_weights(bench, *arena, "tag", Policy::kHost));
    const bool looked_at = i == 0;  // the others only time the first cycle of a fresh arena
    Contents contents(*device, bench.scaled(64_MiB));
    if (looked_at) NEAP_TRY(contents.write(weights.regions));
    NEAP_TRY(device->synchronize());
    const int later = looked_at ? bench.cycles() : 0;
    for (int cycle = 0; cycle <= later; ++cycle) {
      const Timer out;
      NEAP_TRY(arena->pause(kTag).status());
      const double out_ms = out.ms();
      const Timer in;
      NEAP_TRY(arena->resume(kTag).status());
      const double in_ms = in.ms();
      if (cycle == 0) {
        first_pause.add(out_ms);
        first_resume.add(in_ms);
        if (looked_at) NEAP_TRY(contents.check(weights.regions));
      } else {
        pause_rate.add(rate(weights.total, out_ms));
        resume_rate.add(rate(weights.total, in_ms));
      }
    }
    if (looked_at) NEAP_TRY(contents.check(weights.regions));
  }

  const double bytes = static_cast<double>(total.count());
  const double copy_out = bytes / 1e6 / down.median();
  const double copy_in = bytes / 1e6 / up.median();
  const double slowest = std::max({parts.touch.median(), parts.pin.median(), copy_out});
  const Json detail = {{"bytes", total.count()}, {"regions", weight_sizes(bench).size()}};
  Json first_detail = detail;
  first_detail["touch_ms"] = parts.touch.median();
  first_detail["pin_ms"] = parts.pin.median();
  first_detail["copy_ms"] = copy_out;
  bench.add({"backup", "first pause", "ms", Better::kLess, first_pause, Series(slowest),
             format("the slowest of first touch {:.0f} ms, pinning {:.0f} ms, copying {:.0f} ms",
                    parts.touch.median(), parts.pin.median(), copy_out),
             first_detail});
  bench.add({"backup", "first resume", "ms", Better::kLess, first_resume, Series(copy_in),
             "copies alone", detail});
  bench.add(
      {"backup", "later pauses", "GB/s", Better::kMore, pause_rate, down, "copies alone", detail});
  bench.add(
      {"backup", "later resumes", "GB/s", Better::kMore, resume_rate, up, "copies alone", detail});
  return {};
}

}  // namespace neap::bench
