#include "spec/model/checkpointing.h"

#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<SavedTensor> kSavedTensorNames[] = {
    {"attention_input", SavedTensor::kAttentionInput},
    {"projections", SavedTensor::kProjections},
    {"query_key", SavedTensor::kQueryKey},
    {"attention_out", SavedTensor::kAttentionOut},
    {"attention_result", SavedTensor::kAttentionResult},
    {"middle", SavedTensor::kMiddle},
    {"mlp_input", SavedTensor::kMlpInput},
    {"gate", SavedTensor::kGate},
    {"up", SavedTensor::kUp},
    {"activated", SavedTensor::kActivated},
    {"product", SavedTensor::kProduct},
    {"mlp_result", SavedTensor::kMlpResult},
};
static_assert(std::size(kSavedTensorNames) == kSavedTensors);
constexpr Named<CheckpointMode> kCheckpointModes[] = {
    {"none", CheckpointMode::kNone},
    {"selective", CheckpointMode::kSelective},
    {"full", CheckpointMode::kFull},
    {"auto", CheckpointMode::kAuto},
};

// Outputs of norms, rotations and elementwise products. Recomputing one takes a few passes over
// memory.
BlockRetention selective(const Architecture& a) {
  BlockRetention r;
  const auto recompute = [&](SavedTensor t) { r.set(t, Retention::kRecompute); };
  if (a.placement.before) {
    recompute(SavedTensor::kAttentionInput);
    recompute(SavedTensor::kMlpInput);
  }
  if (a.placement.after || a.placement.over) recompute(SavedTensor::kMiddle);
  if (a.query_key_norm) recompute(SavedTensor::kQueryKey);
  recompute(SavedTensor::kActivated);
  recompute(SavedTensor::kProduct);
  return r;
}

}  // namespace

std::string_view to_string(SavedTensor tensor) {
  return name_of(kSavedTensorNames, tensor);
}

std::vector<SavedTensor> saved_tensors(const Architecture& a, bool gates_at_once) {
  const bool norm_behind = a.placement.after || a.placement.over;
  std::vector<SavedTensor> out;
  const auto add = [&](bool has, SavedTensor tensor) {
    if (has) out.push_back(tensor);
  };
  add(a.placement.before, SavedTensor::kAttentionInput);
  add(true, SavedTensor::kProjections);
  add(true, SavedTensor::kQueryKey);
  add(true, SavedTensor::kAttentionOut);
  add(norm_behind, SavedTensor::kAttentionResult);
  add(!a.parallel_residual, SavedTensor::kMiddle);
  add(a.placement.before, SavedTensor::kMlpInput);
  add(a.gated, SavedTensor::kGate);
  add(true, SavedTensor::kUp);
  add(!a.gated || !gates_at_once, SavedTensor::kActivated);
  add(a.gated, SavedTensor::kProduct);
  add(norm_behind, SavedTensor::kMlpResult);
  return out;
}

BlockRetention BlockRetention::all(Retention retention) {
  BlockRetention r;
  r.of_.fill(retention);
  return r;
}

std::string_view to_string(CheckpointMode mode) {
  return name_of(kCheckpointModes, mode);
}

std::vector<std::string> checkpoint_mode_names() {
  return names_of(kCheckpointModes);
}

Result<CheckpointMode> parse_checkpoint_mode(std::string_view name) {
  return parse_name(kCheckpointModes, name, "activation_checkpointing");
}

Checkpointing checkpointing(CheckpointMode mode, const Architecture& architecture) {
  BlockRetention each;
  if (mode == CheckpointMode::kSelective) each = selective(architecture);
  if (mode == CheckpointMode::kFull || mode == CheckpointMode::kAuto)
    each = BlockRetention::all(Retention::kRecompute);
  return {std::vector<BlockRetention>(static_cast<std::size_t>(architecture.blocks()), each)};
}

}  // namespace neap::spec
