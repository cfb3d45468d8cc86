#include "spec/measures.h"

#include <array>

#include "spec/names.h"

namespace neap::spec {
namespace {

struct Row {
  std::string_view name, text;
};
// Indexed by the enum: default measures first, and measures with bitwise identical results before
// the others.
constexpr std::array<Row, kMeasures> kRows = {
    {{"recompute", "recompute activations where `activation_checkpointing` is `auto`"},
     {"offload", "keep tags in host memory during phases that do not need them"},
     {"offload_optimizer", "`memory.optimizer_offload = \"cpu\"`"},
     {"offload_weights",
      "keep layers in host memory and prefetch each before it is used, with the gradients of "
      "trained ones; then also the embedding, the LM head and layer inputs"},
     {"nvme",
      "offload to disk what host memory has no room for: optimizer states, then layers. Frozen "
      "weights are read from the model's own safetensors files if their type is the same"},
     {"micro_batch", "smaller micro-batches in training: the sums are added in another order"},
     {"bf16_states",
      "`state_dtype` bfloat16 if a step is 5 % faster or nothing else fits: other results. A "
      "resumed run keeps what its checkpoint has"}}};
constexpr std::size_t kDefault = 4;

}  // namespace

std::string_view to_string(Measure measure) {
  return kRows[static_cast<std::size_t>(measure)].name;
}

std::string_view describe(Measure measure) {
  return kRows[static_cast<std::size_t>(measure)].text;
}

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::vector<Measure> default_measures() {
  std::vector<Measure> allowed;
  for (std::size_t m = 0; m < kDefault; ++m) allowed.push_back(static_cast<Measure>(m));
  return allowed;
}

Result<Measure> parse_measure(std::string_view name) {
  return parse_name<Measure>(measure_names(), name, "A technique");
}

}  // namespace neap::spec
