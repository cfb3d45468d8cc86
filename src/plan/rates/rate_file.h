// Throughput that `neap doctor` measured on a GPU of this machine, stored for plans.
//
// There is a file per GPU model and host: NAME@HOST.json in neap/rates of the user's cache folder
// (XDG_CACHE_HOME, else ~/.cache). It is valid for the driver that it was measured with.
//
// Threads   any; a file is replaced atomically.
// Failure   load: a file that is corrupt or of another schema, GPU, host or driver is an error that
//           names it. save: kIo, and kNotFound without a cache folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "device/rates.h"

namespace neap::plan {

struct MeasuredRates {
  std::string gpu;   ///< "NVIDIA H200"
  std::string date;  ///< "2026-11-22", UTC
  device::Rates device;
  /// Matrix products; 0: not measured, or the GPU has no products of fp8.
  double half_flops = 0, single_flops = 0, fp8_flops = 0;
  double issue_seconds = 0;  ///< host time to launch an operation; 0: not measured
};

[[nodiscard]] Result<std::filesystem::path> rate_file(const std::string& gpu);
/// Adds the current host and driver; returns the file.
[[nodiscard]] Result<std::filesystem::path> save_rates(const MeasuredRates& rates);
/// nullopt if nothing was measured.
[[nodiscard]] Result<std::optional<MeasuredRates>> load_rates(const std::string& gpu);

}  // namespace neap::plan
