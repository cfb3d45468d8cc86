// PEFT's adapter_config.json: the layers that a LoRA adapter applies to, and how it is added.
//
// Threads   values and stateless functions.
// Failure   Status with the file, the key and the value; kUnsupported for kinds of adapters that
//           cannot be read.
// Cost      microseconds per layer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model/architecture.h"
#include "spec/types/lora.h"
#include "spec/types/model_files.h"

namespace neap::spec {

struct AdapterConfig {
  LoraShape lora;           ///< `modules` has every adapted layer, including the head
  bool magnitudes = false;  ///< DoRA
  bool biases = false;      ///< it includes trained biases
  double dropout = 0;       ///< during training
  std::vector<std::string> modules_to_save;  ///< modules whose full weights are in the adapter

  /// `model` is the base model. `where` names the file in messages.
  [[nodiscard]] static Result<AdapterConfig> from_json(const Json& config, std::string_view where,
                                                       const Architecture& model);
  [[nodiscard]] static Result<AdapterConfig> from_folder(const std::filesystem::path& folder,
                                                         const Architecture& model);
  /// Whether modules_to_save has this module (by its name in the file).
  [[nodiscard]] bool saves(std::string_view path) const;
  /// Fails for adapters whose training cannot continue: DoRA, biases, full modules other than a
  /// scalar head, layers outside the blocks.
  [[nodiscard]] Status check_trainable(std::string_view where, const Architecture& model) const;
};

/// PEFT's keys for an adapter of a model with head `head`.
[[nodiscard]] Json adapter_json(const LoraShape& lora, const Architecture& model, Head head,
                                const std::string& base_model);

}  // namespace neap::spec
