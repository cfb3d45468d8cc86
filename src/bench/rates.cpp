#include "bench/rates.h"

#include <algorithm>

#include "arena/host_memory.h"
#include "bench/plain.h"

namespace neap::bench {
namespace {

constexpr int kRepeats = 5;
constexpr double kGiga = 1e9;  // PlainCopies returns GB/s

template <class Measure>
Result<double> median_of(Measure measure) {
  Series series;
  for (int i = 0; i < kRepeats; ++i) {
    NEAP_TRY_ASSIGN(const double value, measure());
    series.add(value);
  }
  return series.median();
}

// Seconds per byte to unmap and map again pages of 16 MiB that fill `size`.
Result<double> measure_remap(device::Device& device, Bytes size) {
  const Bytes page = round_up(std::min(16_MiB, size), device.info().granularity);
  NEAP_TRY_ASSIGN(const auto pages,
                  PlainLoop::make(device, std::max<std::uint64_t>(1, size / page), page));
  NEAP_TRY(pages->create());
  NEAP_TRY(pages->map());
  NEAP_TRY_ASSIGN(const double ms, median_of([&]() -> Result<double> {
                    const Timer timer;
                    NEAP_TRY(pages->unmap());
                    NEAP_TRY(pages->map());
                    return timer.ms();
                  }));
  return ms / 1e3 / static_cast<double>(pages->size().count());
}

Bytes measured_size(const device::MemoryInfo& memory, Bytes granularity) {
  const Bytes room = std::min(memory.free, arena::available_host_memory()) / 8;
  return round_up(std::min(1_GiB, room), 2 * granularity);
}

}  // namespace

Result<device::Rates> measure_rates(device::Device& device) {
  NEAP_TRY_ASSIGN(const device::MemoryInfo memory, device.memory());
  const Bytes size = measured_size(memory, device.info().granularity);
  device::Rates rates;
  {
    NEAP_TRY_ASSIGN(const auto copies, PlainCopies::make(device, size));
    NEAP_TRY_ASSIGN(rates.to_host, median_of([&] { return copies->to_host(); }));
    NEAP_TRY_ASSIGN(rates.to_device, median_of([&] { return copies->to_device(); }));
    NEAP_TRY_ASSIGN(rates.both, median_of([&] { return copies->both(); }));
    NEAP_TRY_ASSIGN(rates.memory, median_of([&] { return copies->on_device(); }));
  }
  for (double* rate : {&rates.to_host, &rates.to_device, &rates.both, &rates.memory})
    *rate *= kGiga;
  NEAP_TRY_ASSIGN(rates.remap, measure_remap(device, size));
  return rates;
}

}  // namespace neap::bench
