// Pause and resume with contents in host memory: the first cycle, and later cycles.
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

constexpr Bytes kChunk = 128_MiB;  // pinned at once, as in the arena

struct Parts {
  Series touch, pin;  ///< ms
};

/// Times of touching and pinning, each measured separately. A first pause needs both in addition to the copy.
Result<Parts> measure_parts(const Bench& bench, device::Device& device, Bytes size) {
  Parts parts;
  for (int i = 0; i < std::clamp(bench.cycles() / 4, 1, 5) + 1; ++i) {
    NEAP_TRY_ASSIGN(const auto room, HostRoom::make(size));
    const Timer touch;
    NEAP_TRY(room->touch(touching_threads()));
    if (i > 0) parts.touch.add(touch.ms());  // the first run makes the machine allocate its memory
    const Timer pin;
    for (Bytes at; at < size; at += kChunk)
      NEAP_TRY(device.register_host(room->at + at.count(), std::min(kChunk, size - at)));
    if (i > 0) parts.pin.add(pin.ms());
    for (Bytes at; at < size; at += kChunk) NEAP_TRY(device.unregister_host(room->at + at.count()));
  }
  return parts;
}

/// Rates of plain copies in both directions, in GB/s.
struct CopyRates {
  Series down, up;
};

Result<CopyRates> measure_copies(const Bench& bench, device::Device& device, Bytes size) {
  CopyRates rates;
  NEAP_TRY_ASSIGN(const auto copies, PlainCopies::make(device, size));
  for (int i = 0; i < bench.cycles(); ++i) {
    NEAP_TRY_ASSIGN(const double out, copies->to_host());
    NEAP_TRY_ASSIGN(const double in, copies->to_device());
    rates.down.add(out);
    rates.up.add(in);
  }
  return rates;
}

struct Cycles {
  Series first_pause, first_resume;  ///< ms
  Series pause_rate, resume_rate;    ///< GB/s, of later cycles
};

/// Measures a fresh arena's first cycle. With `checked`, also measures later cycles and checks the
/// contents.
Status measure_arena(Bench& bench, device::Device& device, bool checked, Cycles& out) {
  NEAP_TRY_ASSIGN(const auto arena, Arena::make(device));
  NEAP_TRY_ASSIGN(const Weights weights, create_weights(bench, *arena, "tag", Policy::kHost));
  Contents contents(device, bench.scaled(64_MiB));
  if (checked) NEAP_TRY(contents.write(weights.regions));
  NEAP_TRY(device.synchronize());
  const int later = checked ? bench.cycles() : 0;
  for (int cycle = 0; cycle <= later; ++cycle) {
    const Timer pause;
    NEAP_TRY(arena->pause(kTag).status());
    const double pause_ms = pause.ms();
    const Timer resume;
    NEAP_TRY(arena->resume(kTag).status());
    const double resume_ms = resume.ms();
    if (cycle == 0) {
      out.first_pause.add(pause_ms);
      out.first_resume.add(resume_ms);
      if (checked) NEAP_TRY(contents.check(weights.regions));
    } else {
      out.pause_rate.add(rate(weights.total, pause_ms));
      out.resume_rate.add(rate(weights.total, resume_ms));
    }
  }
  return checked ? contents.check(weights.regions) : Status();
}

void add_results(Bench& bench, Bytes total, const Parts& parts, const CopyRates& copies,
                 const Cycles& cycles) {
  const double bytes = static_cast<double>(total.count());
  const double copy_out = bytes / 1e6 / copies.down.median();
  const double copy_in = bytes / 1e6 / copies.up.median();
  const double slowest = std::max({parts.touch.median(), parts.pin.median(), copy_out});
  const Json detail = {{"bytes", total.count()}, {"regions", weight_sizes(bench).size()}};
  Json first_detail = detail;
  first_detail["touch_ms"] = parts.touch.median();
  first_detail["pin_ms"] = parts.pin.median();
  first_detail["copy_ms"] = copy_out;
  bench.add({"backup", "first pause", "ms", Better::kLess, cycles.first_pause, Series(slowest),
             format("the slowest of first touch {:.0f} ms, pinning {:.0f} ms, copying {:.0f} ms",
                    parts.touch.median(), parts.pin.median(), copy_out),
             first_detail});
  bench.add({"backup", "first resume", "ms", Better::kLess, cycles.first_resume, Series(copy_in),
             "copies alone", detail});
  bench.add({"backup", "later pauses", "GB/s", Better::kMore, cycles.pause_rate, copies.down,
             "copies alone", detail});
  bench.add({"backup", "later resumes", "GB/s", Better::kMore, cycles.resume_rate, copies.up,
             "copies alone", detail});
}

}  // namespace

Status run_backup(Bench& bench) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  Bytes total;
  for (const Bytes size : weight_sizes(bench)) total += round_up(size, device->info().granularity);
  NEAP_TRY(bench.need_host(bench.cuda() ? total : 2 * total, "backups of the weights"));
  NEAP_TRY_ASSIGN(const Parts parts, measure_parts(bench, *device, total));
  NEAP_TRY_ASSIGN(const CopyRates copies, measure_copies(bench, *device, total));
  Cycles cycles;
  const int fresh = std::clamp(bench.cycles() / 3, 1, 6);
  for (int i = 0; i < fresh; ++i) NEAP_TRY(measure_arena(bench, *device, i == 0, cycles));
  add_results(bench, total, parts, copies, cycles);
  return {};
}

}  // namespace neap::bench
