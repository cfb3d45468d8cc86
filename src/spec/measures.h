// What a plan may do so that a job fits: memory.allow.
//
// Threads   values and functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace neap::spec {

enum class Measure : std::uint8_t {
  kRecompute,
  kMove,
  kStream,
  kStreamWeights,
  kDisk,
  kMicroBatch,
  kBf16States,
};
constexpr std::size_t kMeasures = 7;
[[nodiscard]] std::string_view to_string(Measure measure);
/// What it does, for the configuration reference.
[[nodiscard]] std::string_view describe(Measure measure);
/// All names, in order.
[[nodiscard]] std::vector<std::string> measure_names();
/// Those that a job allows unless it says otherwise. They leave every bit of the results as it is.
[[nodiscard]] std::vector<Measure> default_measures();
[[nodiscard]] Result<Measure> parse_measure(std::string_view name);

}  // namespace neap::spec
