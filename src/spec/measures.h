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
  kRecompute,      ///< compute activations again, where activation_checkpointing is "auto"
  kMove,           ///< keep tags on the host while no phase needs them
  kStream,         ///< keep optimizer states on the host and bring them part by part
  kStreamWeights,  ///< keep blocks of a model on the host and bring each when it is used
  kDisk,           ///< keep optimizer states on disk instead of the host, and blocks
  kMicroBatch,     ///< train in smaller micro-batches: sums in another order
  kBf16States,     ///< keep optimizer moments in bfloat16: another training
};
constexpr std::size_t kMeasures = 7;
[[nodiscard]] std::string_view to_string(Measure measure);
/// All names, in order.
[[nodiscard]] std::vector<std::string> measure_names();
/// Those that a job allows unless it says otherwise. They leave every bit of the results as it is.
[[nodiscard]] std::vector<Measure> default_measures();
[[nodiscard]] Result<Measure> parse_measure(std::string_view name);

}  // namespace neap::spec
