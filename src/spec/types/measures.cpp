#include "spec/types/measures.h"

#include <array>

#include "spec/types/names.h"

namespace neap::spec {
namespace {

struct Row {
  std::string_view name;
  Measure value;
  bool same_bits;  // results stay bitwise identical
  std::string_view text;
};
// Default measures first.
constexpr std::array<Row, kMeasures> kRows = {
    {{"recompute", Measure::kRecompute, true,
      "recompute activations if `activation_checkpointing` is `auto`"},
     {"offload", Measure::kMove, true,
      "keep tags in host memory during phases that do not need them"},
     {"offload_optimizer", Measure::kStream, true, "`memory.optimizer_offload = \"cpu\"`"},
     {"offload_weights", Measure::kStreamWeights, true,
      "keep layers in host memory and prefetch each before it is used, with the gradients of "
      "trained ones; then also the embedding and the LM head. Keep layer inputs there until the "
      "backward"},
     {"rollout_batch", Measure::kRolloutBatch, false,
      "decode fewer sequences together than `rollout.batch_size` if a step is 5 % faster or "
      "nothing else fits: products of fewer rows are added in another order. Not with "
      "`trainer.deterministic`"},
     {"nvme", Measure::kDisk, true,
      "offload to disk what host memory has no room for: optimizer states, then layers. Frozen "
      "weights are read from the model's own safetensors files if their type is the same"},
     {"micro_batch", Measure::kMicroBatch, false,
      "smaller micro-batches in training: the sums are added in another order"},
     {"bf16_states", Measure::kBf16States, false,
      "`state_dtype` bfloat16 if a step is 5 % faster or nothing else fits: other results. A "
      "resumed run keeps what its checkpoint has"}}};
constexpr std::size_t kDefault = 5;

}  // namespace

std::string_view to_string(Measure measure) {
  return name_of(kRows, measure);
}

std::string_view describe(Measure measure) {
  return row_of(kRows, measure).text;
}

bool keeps_bits(Measure measure) {
  return row_of(kRows, measure).same_bits;
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
