#include "plan/rates/gpu_catalog.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/text.h"
#include "plan/rates/device_rates.h"

namespace neap::plan {
namespace {

constexpr Bytes gib(double n) {
  return Bytes(static_cast<std::uint64_t>(n * (1 << 30)));
}

// Values of data sheets: FLOP/s of dense 16-bit products with float32 accumulation, and of float32
// arithmetic; bytes per second of memory, of NVLink and of PCIe each way. PCIe replaces NVLink for
// cards without it, or with only a bridge for two. `free` is the total that CUDA reports, after
// error correction and the driver's share. It was measured on H100 and H200, taken from users'
// out-of-memory messages for RTX 4090 and 5090, T4 and L40S, and estimated for others.
struct Gpu {
  std::string_view name;
  Card card;
  double half_flops, single_flops, bytes, peers, link;
  std::int64_t multiprocessors;
};
constexpr std::array kGpus = {
    Gpu{"a100",
        {"A100 SXM 80 GB", 80_GiB, gib(79.1), 80},
        312e12,
        19.5e12,
        2.039e12,
        300e9,
        32e9,
        108},
    Gpu{"a100-40gb",
        {"A100 SXM 40 GB", 40_GiB, gib(39.4), 80},
        312e12,
        19.5e12,
        1.555e12,
        300e9,
        32e9,
        108},
    Gpu{"h100", {"H100 SXM", 80_GiB, gib(79.1), 90}, 989e12, 67e12, 3.35e12, 450e9, 64e9, 132},
    Gpu{"h200", {"H200 SXM", 141_GiB, gib(139.8), 90}, 989e12, 67e12, 4.8e12, 450e9, 64e9, 132},
    Gpu{"b200", {"B200 SXM", 180_GiB, gib(178.3), 100}, 2250e12, 75e12, 8e12, 900e9, 64e9, 148},
    Gpu{"rtx5090",
        {"RTX 5090", 32_GiB, gib(31.3), 120},
        209.5e12,
        104.8e12,
        1.792e12,
        64e9,
        64e9,
        170},
    Gpu{"rtx4090",
        {"RTX 4090", 24_GiB, gib(23.6), 89},
        165.2e12,
        82.6e12,
        1.008e12,
        32e9,
        32e9,
        128},
    Gpu{"rtx3090", {"RTX 3090", 24_GiB, gib(23.6), 86}, 71e12, 35.6e12, 0.936e12, 32e9, 32e9, 82},
    Gpu{"rtx6000ada",
        {"RTX 6000 Ada", 48_GiB, gib(47.4), 89},
        364.2e12,
        91.1e12,
        0.96e12,
        32e9,
        32e9,
        142},
    Gpu{"l40s", {"L40S", 48_GiB, gib(44.4), 89}, 362e12, 91.6e12, 0.864e12, 32e9, 32e9, 142},
    Gpu{"l4", {"L4", 24_GiB, gib(22), 89}, 121e12, 30.3e12, 0.3e12, 32e9, 32e9, 58},
    Gpu{"a10g", {"A10G", 24_GiB, gib(22), 86}, 70e12, 35e12, 0.6e12, 32e9, 32e9, 80},
    Gpu{"t4", {"T4", 16_GiB, gib(14.5), 75}, 65e12, 8.1e12, 0.32e12, 16e9, 16e9, 40},
};
// default_rates() and Link are an H200's; default_network() is that of two H100s.
constexpr const Gpu& kMeasured = kGpus[3];
static_assert(kMeasured.name == "h200");

const Gpu* find(std::string_view name) {
  const auto* const found =
      std::find_if(kGpus.begin(), kGpus.end(), [&](const Gpu& gpu) { return gpu.name == name; });
  return found == kGpus.end() ? nullptr : found;
}

}  // namespace

std::vector<std::string> gpu_names() {
  std::vector<std::string> out;
  out.reserve(kGpus.size());
  for (const Gpu& gpu : kGpus) out.emplace_back(gpu.name);
  return out;
}

const Card* find_card(std::string_view name) {
  const Gpu* const found = find(name);
  return found == nullptr ? nullptr : &found->card;
}

Bytes free_of_size(Bytes memory) {
  Bytes least;
  for (const Gpu& gpu : kGpus)
    if (gpu.card.memory == memory && (least.is_zero() || gpu.card.free < least))
      least = gpu.card.free;
  return least.is_zero() ? memory : least;
}

Result<DeviceChoice> gpu_by_name(std::string_view name, Bytes memory) {
  const Gpu* const found = find(name);
  if (found == nullptr)
    return Status(ErrorCode::kInvalidArgument,
                  format("Unknown GPU \"{}\"; known: {}", name, joined(gpu_names(), ", ")));
  DeviceChoice out;
  out.name = found->card.title;
  Target& target = out.target;
  target.cuda = true;
  use_architecture(target, found->card.architecture);
  target.capacity = found->card.free - kCudaContext;
  if (!memory.is_zero()) target.capacity = std::min(memory, target.capacity);
  target.multiprocessors = found->multiprocessors;
  target.rates = default_rates(true, 0);
  target.rates.half_flops *= found->half_flops / kMeasured.half_flops;
  // Data sheets have twice the rate of 16-bit products for fp8.
  target.rates.fp8_flops *= found->half_flops / kMeasured.half_flops;
  target.rates.single_flops *= found->single_flops / kMeasured.single_flops;
  target.rates.bytes *= found->bytes / kMeasured.bytes;
  const double link = found->link / kMeasured.link;
  target.link.to_host *= link;
  target.link.to_device *= link;
  target.link.both *= link;
  Network network = default_network(true);
  network.within.bytes *= found->peers / kMeasured.peers;
  target.network = network;
  target.rates_from = format("of the {}'s data sheet, as much of it as an H200 reaches", out.name);
  return out;
}

}  // namespace neap::plan
