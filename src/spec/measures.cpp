#include "spec/measures.h"

#include <array>

namespace neap::spec {
namespace {

// Indexed by the enum; the exact ones come first.
constexpr std::array<std::string_view, kMeasures> kNames = {
    "recompute", "move", "stream", "stream_weights", "micro_batch", "bf16_states"};
constexpr std::size_t kExact = 4;

}  // namespace

std::string_view to_string(Measure measure) {
  return kNames[static_cast<std::size_t>(measure)];
}

std::vector<std::string> measure_names() {
  return {kNames.begin(), kNames.end()};
}

std::vector<std::string> exact_measures() {
  return {kNames.begin(), kNames.begin() + kExact};
}

}  // namespace neap::spec
