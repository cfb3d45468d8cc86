// Activation checkpointing: what a block keeps of its forward for its backward, tensor by tensor.
//
// Backward reads the tensors of SavedTensor. Each has a retention: it is kept, or computed again
// from tensors that come before it. The block's input is always kept. Losses and gradients do not
// depend on the choice.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "spec/architecture.h"

namespace neap::spec {

/// Tensors that a block's backward reads, in the order in which forward makes them; each is made
/// from earlier ones and the block's input. An architecture has some of them only.
enum class SavedTensor : std::uint8_t {
  kAttentionInput,   ///< (N, C): what q, k and v are projected from
  kProjections,      ///< v, and q and k where norms read them before the rotation
  kQueryKey,         ///< q and k as attention reads them
  kAttentionOut,     ///< (N, H * D) and what the attention kernel keeps for its backward
  kAttentionResult,  ///< (N, C): what a norm behind attention reads
  kMiddle,           ///< (N, C): residual stream between attention and MLP
  kMlpInput,         ///< (N, C): what gate and up are projected from
  kGate,             ///< (N, F)
  kUp,               ///< (N, F)
  kActivated,        ///< (N, F): activation of gate, or of up where there is no gate
  kProduct,          ///< (N, F): activated * up
  kMlpResult,        ///< (N, C): what a norm behind the MLP reads
};
constexpr std::size_t kSavedTensors = 12;
[[nodiscard]] std::string_view to_string(SavedTensor tensor);

enum class Retention : std::uint8_t { kKeep, kRecompute };

/// The retention of each tensor of one block.
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

/// The retention of every block of a model.
struct Checkpointing {
  std::vector<BlockRetention> blocks;
  friend bool operator==(const Checkpointing&, const Checkpointing&) = default;
};

/// What a configuration asks for.
enum class CheckpointMode : std::uint8_t {
  kNone,       ///< keep everything
  kSelective,  ///< compute again what needs no matrix product
  kFull,       ///< keep the input
  kAuto,       ///< the plan chooses for each tensor and block
};
[[nodiscard]] std::string_view to_string(CheckpointMode mode);
[[nodiscard]] std::vector<std::string> checkpoint_mode_names();
[[nodiscard]] Result<CheckpointMode> parse_checkpoint_mode(std::string_view name);

/// What `mode` means for a model. kAuto starts as kFull, what fits if anything does.
[[nodiscard]] Checkpointing checkpointing(CheckpointMode mode, const Architecture& architecture);

}  // namespace neap::spec
