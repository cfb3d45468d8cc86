#include "spec/checkpointing.h"

#include "base/format.h"

namespace neap::spec {
namespace {

constexpr std::array<std::string_view, kSavedTensors> kTensorNames = {
    "attention_input",
    "projections",
    "query_key",
    "attention_out",
    "attention_result",
    "middle",
    "mlp_input",
    "gate",
    "up",
    "activated",
    "product",
    "mlp_result",
};
struct Mode {
  std::string_view name;
  CheckpointMode mode;
};
constexpr std::array<Mode, 4> kModes = {{{"none", CheckpointMode::kNone},
                                         {"selective", CheckpointMode::kSelective},
                                         {"full", CheckpointMode::kFull},
                                         {"auto", CheckpointMode::kAuto}}};

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
  return kTensorNames.at(static_cast<std::size_t>(tensor));
}

BlockRetention BlockRetention::all(Retention retention) {
  BlockRetention r;
  r.of_.fill(retention);
  return r;
}

std::string_view to_string(CheckpointMode mode) {
  return kModes.at(static_cast<std::size_t>(mode)).name;
}

std::vector<std::string> checkpoint_mode_names() {
  std::vector<std::string> names;
  names.reserve(kModes.size());
  for (const Mode& m : kModes) names.emplace_back(m.name);
  return names;
}

Result<CheckpointMode> parse_checkpoint_mode(std::string_view name) {
  for (const Mode& m : kModes) {
    if (m.name == name) return m.mode;
  }
  return Status(ErrorCode::kInvalidArgument,
                format("Unknown activation_checkpointing \"{}\"", name));
}

Checkpointing checkpointing(CheckpointMode mode, const Architecture& architecture) {
  BlockRetention each;
  if (mode == CheckpointMode::kSelective) each = selective(architecture);
  if (mode == CheckpointMode::kFull || mode == CheckpointMode::kAuto)
    each = BlockRetention::all(Retention::kRecompute);
  return {std::vector<BlockRetention>(static_cast<std::size_t>(architecture.blocks()), each)};
}

}  // namespace neap::spec
