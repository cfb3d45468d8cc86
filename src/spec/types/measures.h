// Measures that a plan may take so that a job fits: memory.allow.
//
// Threads   values and stateless functions.
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
  kRolloutBatch,
  kDisk,
  kMicroBatch,
  kBf16States,
};
constexpr std::size_t kMeasures = 8;
[[nodiscard]] std::string_view to_string(Measure measure);
/// The measure's description in the configuration reference.
[[nodiscard]] std::string_view describe(Measure measure);
/// Whether results are bitwise identical with and without it.
[[nodiscard]] bool keeps_bits(Measure measure);
/// All names, in enum order.
[[nodiscard]] std::vector<std::string> measure_names();
/// The measures that are allowed by default.
[[nodiscard]] std::vector<Measure> default_measures();
[[nodiscard]] Result<Measure> parse_measure(std::string_view name);

}  // namespace neap::spec
