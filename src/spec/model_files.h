// Where the files of a model are: a folder with weights, or with an adapter and the name of its base.
//
// Threads   functions without state.
// Failure   Status with the file, the key and the value.
#pragma once

#include <filesystem>
#include <initializer_list>

#include "base/json.h"
#include "base/status.h"
#include "spec/task.h"

namespace neap::spec {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
// Of a whole model: one file, or the index of several.
inline constexpr const char* kModelWeights = "model.safetensors";
inline constexpr const char* kModelWeightIndex = "model.safetensors.index.json";

/// The keys of an adapter_config.json.
[[nodiscard]] Result<Json> read_adapter_config(const std::filesystem::path& file);

/// The folder has weights of a whole model, not a config.json or an adapter alone.
[[nodiscard]] bool has_weights(const std::filesystem::path& folder);

/// Where the files of a model are.
struct ModelFiles {
  std::filesystem::path base;     ///< config.json and weights
  std::filesystem::path adapter;  ///< PEFT's files, added to the weights; empty: none

  /// The adapter's folder if it has a tokenizer.json, else the base's.
  [[nodiscard]] std::filesystem::path tokenizer() const;
};
/// A folder with weights and perhaps an adapter next to them, or of an adapter alone, whose
/// base_model_name_or_path is a folder.
[[nodiscard]] Result<ModelFiles> find_model(const std::filesystem::path& folder);

/// Where a model is in `path`: in `path` itself, or as one of `models` in a checkpoint or in the
/// newest one of a run's output. `path` where it is in none of these.
[[nodiscard]] std::filesystem::path find_model_folder(const std::filesystem::path& path,
                                                      std::initializer_list<ModelId> models);

}  // namespace neap::spec
