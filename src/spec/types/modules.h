// The modules that a network's parameters belong to, and the properties of a module that all
// architectures share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace neap::spec {

enum class Module : std::uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,
  kProjectIn,
  kEmbeddingNorm,
  kAttentionNorm,  ///< before attention
  kQuery,
  kKey,
  kValue,
  kQueryKeyValue,
  kQueryNorm,
  kKeyNorm,
  kAttentionOut,
  kAttentionAfterNorm,  ///< after attention, or after its residual addition
  kMlpNorm,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kMlpAfterNorm,
  kFinalNorm,
  kProjectOut,
  kLmHead,
  kScore,
};
enum class Part : std::uint8_t { kWeight, kBias, kLoraA, kLoraB };

/// The part of the network that a module is in.
enum class ModulePlace : std::uint8_t { kEmbedding, kAttention, kMlp, kBlockNorms, kHead };
enum class ModuleKind : std::uint8_t { kTable, kLinear, kNorm };
/// Which side of a matrix tensor-parallel ranks divide. A table's outputs are its tokens.
enum class DividedSide : std::uint8_t { kNone, kOutputs, kInputs };
/// The unit of the divided side.
enum class DividedWidth : std::uint8_t {
  kNone,
  kVocabulary,
  kQueryHeads,
  kKeyHeads,
  kAllHeads,  ///< of queries, keys and values, in the order of QkvLayout
  kInner,     ///< columns of the MLP
  kTwoInner,  ///< columns of gate, then those of up
};
/// The extent of a rank's gradient if all tensor-parallel ranks hold the whole parameter.
enum class ReplicatedGradient : std::uint8_t {
  kAll,     ///< everything: it is equal on all ranks
  kHeads,   ///< the rank's heads, unless the norm spans all heads
  kTokens,  ///< the rank's tokens, with sequence parallelism
};

struct ModuleTraits {
  Module module;
  ModulePlace place;
  ModuleKind kind;
  DividedSide divided = DividedSide::kNone;
  DividedWidth width = DividedWidth::kNone;
  ReplicatedGradient gradient = ReplicatedGradient::kAll;
};

/// In the order of `Module`.
inline constexpr std::array kModuleTraits = {
    ModuleTraits{Module::kTokenEmbedding, ModulePlace::kEmbedding, ModuleKind::kTable,
                 DividedSide::kOutputs, DividedWidth::kVocabulary},
    ModuleTraits{Module::kPositionEmbedding, ModulePlace::kEmbedding, ModuleKind::kTable,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kProjectIn, ModulePlace::kEmbedding, ModuleKind::kLinear,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kEmbeddingNorm, ModulePlace::kEmbedding, ModuleKind::kNorm,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kAttentionNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kQuery, ModulePlace::kAttention, ModuleKind::kLinear,
                 DividedSide::kOutputs, DividedWidth::kQueryHeads},
    ModuleTraits{Module::kKey, ModulePlace::kAttention, ModuleKind::kLinear, DividedSide::kOutputs,
                 DividedWidth::kKeyHeads},
    ModuleTraits{Module::kValue, ModulePlace::kAttention, ModuleKind::kLinear,
                 DividedSide::kOutputs, DividedWidth::kKeyHeads},
    ModuleTraits{Module::kQueryKeyValue, ModulePlace::kAttention, ModuleKind::kLinear,
                 DividedSide::kOutputs, DividedWidth::kAllHeads},
    ModuleTraits{Module::kQueryNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kHeads},
    ModuleTraits{Module::kKeyNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm, DividedSide::kNone,
                 DividedWidth::kNone, ReplicatedGradient::kHeads},
    ModuleTraits{Module::kAttentionOut, ModulePlace::kAttention, ModuleKind::kLinear,
                 DividedSide::kInputs, DividedWidth::kQueryHeads},
    ModuleTraits{Module::kAttentionAfterNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kMlpNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm, DividedSide::kNone,
                 DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kGate, ModulePlace::kMlp, ModuleKind::kLinear, DividedSide::kOutputs,
                 DividedWidth::kInner},
    ModuleTraits{Module::kUp, ModulePlace::kMlp, ModuleKind::kLinear, DividedSide::kOutputs,
                 DividedWidth::kInner},
    ModuleTraits{Module::kGateUp, ModulePlace::kMlp, ModuleKind::kLinear, DividedSide::kOutputs,
                 DividedWidth::kTwoInner},
    ModuleTraits{Module::kDown, ModulePlace::kMlp, ModuleKind::kLinear, DividedSide::kInputs,
                 DividedWidth::kInner},
    ModuleTraits{Module::kMlpAfterNorm, ModulePlace::kBlockNorms, ModuleKind::kNorm,
                 DividedSide::kNone, DividedWidth::kNone, ReplicatedGradient::kTokens},
    ModuleTraits{Module::kFinalNorm, ModulePlace::kHead, ModuleKind::kNorm},
    ModuleTraits{Module::kProjectOut, ModulePlace::kHead, ModuleKind::kLinear},
    ModuleTraits{Module::kLmHead, ModulePlace::kHead, ModuleKind::kLinear, DividedSide::kOutputs,
                 DividedWidth::kVocabulary},
    ModuleTraits{Module::kScore, ModulePlace::kHead, ModuleKind::kLinear},
};
inline constexpr std::size_t kModules = kModuleTraits.size();

[[nodiscard]] constexpr const ModuleTraits& traits_of(Module module) {
  return kModuleTraits[static_cast<std::size_t>(module)];
}

namespace detail {
constexpr bool in_order() {
  for (std::size_t i = 0; i < kModules; ++i)
    if (kModuleTraits[i].module != static_cast<Module>(i)) return false;
  return true;
}
}  // namespace detail
static_assert(detail::in_order());
static_assert(kModules == static_cast<std::size_t>(Module::kScore) + 1);

}  // namespace neap::spec
