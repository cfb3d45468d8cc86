// Rates that `neap doctor` measured on a GPU of this machine, kept for plans.
//
// A file for each model of GPU and host, NAME@HOST.json in neap/rates of the user's cache folder
// (XDG_CACHE_HOME, else ~/.cache). It holds for the driver that it was measured with.
//
// Threads   any; a file is replaced whole.
// Failure   load: a file that is corrupt, of another schema, or of another GPU, host or driver is an
//           error that names it. save: kIo, and kNotFound without a cache folder.
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
  double half_flops = 0, single_flops = 0;  ///< of matrix products; 0: not measured
  double issue_seconds = 0;  ///< of the program, to start an operation; 0: not measured
};

[[nodiscard]] Result<std::filesystem::path> rate_file(const std::string& gpu);
/// With the present host and driver; returns the file.
[[nodiscard]] Result<std::filesystem::path> save_rates(const MeasuredRates& rates);
/// nullopt: nothing was measured.
[[nodiscard]] Result<std::optional<MeasuredRates>> load_rates(const std::string& gpu);

}  // namespace neap::plan
