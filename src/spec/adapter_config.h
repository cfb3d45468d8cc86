// PEFT's adapter_config.json: which layers of a model a LoRA adapter is for, and how it is added.
//
// Threads   values and functions without state.
// Failure   Status with the file, the key and the value; kUnsupported for kinds of adapters that are
//           not read.
// Cost      microseconds a layer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "spec/architecture.h"
#include "spec/lora.h"
#include "spec/model_files.h"

namespace neap::spec {

struct AdapterConfig {
  LoraShape lora;                            ///< `modules` has every adapted layer, the head's too
  bool magnitudes = false;                   ///< DoRA
  bool biases = false;                       ///< trained biases come with it
  double dropout = 0;                        ///< of training
  std::vector<std::string> modules_to_save;  ///< parameters of these come whole

  /// `model`: what the adapter is added to. `where` names the file in messages.
  [[nodiscard]] static Result<AdapterConfig> from_json(const Json& config, std::string_view where,
                                                       const Architecture& model);
  [[nodiscard]] static Result<AdapterConfig> from_folder(const std::filesystem::path& folder,
                                                         const Architecture& model);
  /// Whether the file's name of a module is in modules_to_save.
  [[nodiscard]] bool saves(std::string_view path) const;
  /// Fails where training cannot continue it: DoRA, biases, whole modules but a scalar head, layers
  /// outside of the blocks.
  [[nodiscard]] Status check_trainable(std::string_view where, const Architecture& model) const;
};

/// PEFT's keys for an adapter of a model with `head`.
[[nodiscard]] Json adapter_json(const LoraShape& lora, const Architecture& model, Head head,
                                const std::string& base_model);

}  // namespace neap::spec
