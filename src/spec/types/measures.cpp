#include "spec/types/measures.h"

#include <array>

#include "spec/types/names.h"

namespace neap::spec {
namespace {

struct Row {
  std::string_view name;
  Measure value;
  std::string_view text;
};
// Default measures first, and measures with bitwise identical results before
// the others.
constexpr std::array<Row, kMeasures> kRows = {
    {{"recompute", Measure::kRecompute,
      "recompute activations if `activation_checkpointing` is `auto`"},
     {"offload", Measure::kMove, "keep tags in host memory during phases that do not need them"},
     {"offload_optimizer", Measure::kStream, "`memory.optimizer_offload = \"cpu\"`"},
     {"offload_weights", Measure::kStreamWeights,
      "keep layers in host memory and prefetch each before it is used, with the gradients of "
      "trained ones; then also the embedding and the LM head. Keep layer inputs there until the "
      "backward"},
     {"nvme", Measure::kDisk,
      "offload to disk what host memory has no room for: optimizer states, then layers. Frozen "
      "weights are read from the model's own safetensors files if their type is the same"},
     {"micro_batch", Measure::kMicroBatch,
      "smaller micro-batches in training: the sums are added in another order"},
     {"bf16_states", Measure::kBf16States,
      "`state_dtype` bfloat16 if a step is 5 % faster or nothing else fits: other results. A "
      "resumed run keeps what its checkpoint has"}}};
constexpr std::size_t kDefault = 4;

}  // namespace

std::string_view to_string(Measure measure) {
  return name_of(kRows, measure);
}

std::string_view describe(Measure measure) {
  return row_of(kRows, measure).text;
}

std::vector<std::string> measure_names() {
  return names_of(kRows);
}

std::vector<Measure> default_measures() {
  std::vector<Measure> allowed;
  for (std::size_t m = 0; m < kDefault; ++m) allowed.push_back(kRows[m].value);
  return allowed;
}

Result<Measure> parse_measure(std::string_view name) {
  return parse_name(kRows, name, "A technique");
}

}  // namespace neap::spec
