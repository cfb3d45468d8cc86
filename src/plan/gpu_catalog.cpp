#include "plan/gpu_catalog.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/text.h"
#include "plan/device_rates.h"

namespace neap::plan {
namespace {

// As data sheets state them: FLOP/s of dense products of 16-bit elements and of float32 arithmetic, bytes a second of
// memory, of NVLink and of PCIe each way (of PCIe in place of NVLink where a card has none).
struct Gpu {
  std::string_view name, title;
  double half_flops, single_flops, bytes, peers, link;
  Bytes memory;
  std::int64_t multiprocessors;
};
constexpr std::array kGpus = {
    Gpu{"a100", "A100 SXM 80 GB", 312e12, 19.5e12, 2.039e12, 300e9, 32e9, 80_GiB, 108},
    Gpu{"a100-40gb", "A100 SXM 40 GB", 312e12, 19.5e12, 1.555e12, 300e9, 32e9, 40_GiB, 108},
    Gpu{"h100", "H100 SXM", 989e12, 67e12, 3.35e12, 450e9, 64e9, 80_GiB, 132},
    Gpu{"h200", "H200 SXM", 989e12, 67e12, 4.8e12, 450e9, 64e9, Bytes(141'000'000'000), 132},
};
// default_rates() and Link are an H200's, default_network() that of two H100s.
constexpr const Gpu& kMeasured = kGpus[3];

}  // namespace

std::vector<std::string> gpu_names() {
  std::vector<std::string> out;
  for (const Gpu& gpu : kGpus) out.emplace_back(gpu.name);
  return out;
}

Result<DeviceChoice> gpu_by_name(std::string_view name, Bytes memory) {
  const auto* const found =
      std::find_if(kGpus.begin(), kGpus.end(), [&](const Gpu& gpu) { return gpu.name == name; });
  if (found == kGpus.end())
    return Status(ErrorCode::kInvalidArgument,
                  format("Unknown GPU \"{}\"; known: {}", name, joined(gpu_names(), ", ")));
  DeviceChoice out;
  out.name = found->title;
  Target& target = out.target;
  target.cuda = true;
  target.capacity = memory.is_zero() ? found->memory : std::min(memory, found->memory);
  target.multiprocessors = found->multiprocessors;
  target.rates = default_rates(true, 0);
  target.rates.half_flops *= found->half_flops / kMeasured.half_flops;
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
