// LoRA: which linear layers of a model have an adapter, with which rank and scale.
//
// Threads   values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace neap::spec {

/// The adapter of one linear layer.
struct LoraModule {
  std::int64_t rank = 0;  ///< 0: no adapter
  double alpha = 0;
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

/// y = x W^T + scale (x A^T) B^T with A (rank, in), B (out, rank).
struct LoraShape {
  std::int64_t rank = 0;               ///< 0: no adapters
  std::vector<std::string> targets{};  ///< names or their last parts, as in PEFT; or "all-linear"
  double alpha = 16;
  bool rank_stabilized = false;  ///< scaled by alpha / sqrt(rank) instead of alpha / rank
  /// Adapters by path ("model.layers.3.self_attn.q_proj"), as read from a file. If it is not empty,
  /// `targets` is ignored.
  std::map<std::string, LoraModule, std::less<>> modules{};

  [[nodiscard]] LoraModule of(std::string_view path) const;
  [[nodiscard]] double scale(const LoraModule& module) const;
};

/// Whether a path equals `name` or ends with it after a dot: "self_attn.q_proj" is called "q_proj".
[[nodiscard]] bool is_called(std::string_view path, std::string_view name);
constexpr std::string_view kAllLinear = "all-linear";

}  // namespace neap::spec
