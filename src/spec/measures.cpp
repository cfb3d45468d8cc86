#include "spec/measures.h"

#include <array>

#include "spec/names.h"

namespace neap::spec {
namespace {

// Indexed by the enum; the default ones come first, and the exact ones before the others.
constexpr std::array<std::string_view, kMeasures> kMeasureNames = {
    "recompute", "move", "stream", "stream_weights", "disk", "micro_batch", "bf16_states"};
constexpr std::size_t kDefault = 4;

}  // namespace

std::string_view to_string(Measure measure) {
  return kMeasureNames[static_cast<std::size_t>(measure)];
}

std::vector<std::string> measure_names() {
  return {kMeasureNames.begin(), kMeasureNames.end()};
}

std::vector<Measure> default_measures() {
  std::vector<Measure> allowed;
  for (std::size_t m = 0; m < kDefault; ++m) allowed.push_back(static_cast<Measure>(m));
  return allowed;
}

Result<Measure> parse_measure(std::string_view name) {
  return parse_name<Measure>(kMeasureNames, name, "A measure");
}

}  // namespace neap::spec
