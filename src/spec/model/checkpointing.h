// Activation checkpointing: which tensors of a block's forward are kept for its backward.
//
// Backward reads the tensors of SavedTensor. Each is either kept, or recomputed from tensors that
// come before it. The block's input is always kept. Losses and gradients do not depend on the
// choice.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/model/architecture.h"

namespace neap::spec {

/// Tensors that a block's backward reads, in forward order. Each is computed from earlier ones and
/// the block's input. An architecture uses only some of them.
enum class SavedTensor : std::uint8_t {
  kAttentionInput,   ///< (N, C): input of the q, k and v projections
  kProjections,      ///< v; also q and k if a norm reads them before the rotation
  kQueryKey,         ///< q and k as the attention kernel reads them
  kAttentionOut,     ///< (N, H * D) and what the attention kernel saves for its backward
  kAttentionResult,  ///< (N, C): input of a norm after attention
  kMiddle,           ///< (N, C): residual stream between attention and MLP
  kMlpInput,         ///< (N, C): input of the gate and up projections
  kGate,             ///< (N, F)
  kUp,               ///< (N, F)
  kActivated,        ///< (N, F): activation of gate, or of up without a gate
  kProduct,          ///< (N, F): activated * up
  kMlpResult,        ///< (N, C): input of a norm after the MLP
};
constexpr std::size_t kSavedTensors = 12;
[[nodiscard]] std::string_view to_string(SavedTensor tensor);

/// The tensors of the architecture's blocks. `gates_at_once`: one kernel computes the product of a
/// gated MLP, so that the activation of gate does not exist.
[[nodiscard]] std::vector<SavedTensor> saved_tensors(const Architecture& a, bool gates_at_once);

enum class Retention : std::uint8_t { kKeep, kRecompute };

/// Which tensors of one block are kept.
class BlockRetention {
 public:
  [[nodiscard]] Retention operator[](SavedTensor t) const { return of_[index(t)]; }
  [[nodiscard]] bool keeps(SavedTensor t) const { return (*this)[t] == Retention::kKeep; }
  void set(SavedTensor t, Retention retention) { of_[index(t)] = retention; }
  friend bool operator==(const BlockRetention&, const BlockRetention&) = default;

  [[nodiscard]] static BlockRetention all(Retention retention);

 private:
  [[nodiscard]] static constexpr std::size_t index(SavedTensor t) {
    return static_cast<std::size_t>(t);
  }
  std::array<Retention, kSavedTensors> of_{};
};

/// Which tensors of every block of a model are kept.
struct Checkpointing {
  std::vector<BlockRetention> blocks;
  friend bool operator==(const Checkpointing&, const Checkpointing&) = default;
};

/// The modes that a configuration can select.
enum class CheckpointMode : std::uint8_t {
  kNone,       ///< keep everything
  kSelective,  ///< recompute everything that needs no matrix product
  kFull,       ///< keep only the block's input
  kAuto,       ///< the plan decides for each tensor and block
};
[[nodiscard]] std::string_view to_string(CheckpointMode mode);
[[nodiscard]] std::vector<std::string> checkpoint_mode_names();
[[nodiscard]] Result<CheckpointMode> parse_checkpoint_mode(std::string_view name);

/// The initial choice of `mode`. kAuto starts as kFull, which needs the least memory.
[[nodiscard]] Checkpointing checkpointing(CheckpointMode mode, const Architecture& architecture);

}  // namespace neap::spec
