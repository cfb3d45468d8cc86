// LoRA: which linear layers of a model have an adapter, and of what rank and scale.
//
// Threads   values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace neap::spec {

/// Of one linear layer.
struct LoraModule {
  std::int64_t rank = 0;  ///< 0: it has no adapter
  double alpha = 0;
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

/// y = x W^T + scale (x A^T) B^T with A (rank, in), B (out, rank).
struct LoraShape {
  std::int64_t rank = 0;               ///< 0: no adapters
  std::vector<std::string> targets{};  ///< names or their last parts, as PEFT's; "all-linear"
  double alpha = 16;
  bool rank_stabilized = false;  ///< scaled by alpha / sqrt(rank) instead of alpha / rank
  /// By path ("model.layers.3.self_attn.q_proj"). Where there are any, these have adapters and
  /// `targets` does not count: an adapter that was read.
  std::map<std::string, LoraModule, std::less<>> modules{};

  [[nodiscard]] LoraModule of(std::string_view path) const;
  [[nodiscard]] double scale(const LoraModule& module) const;
};

/// Whether a path is `name` or ends with it behind a dot: "self_attn.q_proj" is called "q_proj".
[[nodiscard]] bool is_called(std::string_view path, std::string_view name);
constexpr std::string_view kAllLinear = "all-linear";

}  // namespace neap::spec
