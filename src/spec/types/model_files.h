// Finds the files of a model: a folder with weights, or with an adapter and its base's path.
//
// Threads   stateless functions.
// Failure   Status with the file, the key and the value.
#pragma once

#include <filesystem>
#include <initializer_list>

#include "base/json.h"
#include "base/status.h"
#include "spec/types/task.h"

namespace neap::spec {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
// Weights of a whole model: one file, or the index of several files.
inline constexpr const char* kModelWeights = "model.safetensors";
inline constexpr const char* kModelWeightIndex = "model.safetensors.index.json";

/// Reads an adapter_config.json.
[[nodiscard]] Result<Json> read_adapter_config(const std::filesystem::path& file);

/// Whether the folder has weights of a whole model, and not just a config.json or an adapter.
[[nodiscard]] bool has_weights(const std::filesystem::path& folder);

/// The files of a model.
struct ModelFiles {
  std::filesystem::path base;     ///< config.json and weights
  std::filesystem::path adapter;  ///< PEFT adapter that is added to the weights; empty: none

  /// The folder of tokenizer.json: the adapter's if it has one, else the base's.
  [[nodiscard]] std::filesystem::path tokenizer() const;
};
/// `folder` has weights, perhaps with an adapter; or only an adapter, whose base_model_name_or_path
/// is a folder.
[[nodiscard]] Result<ModelFiles> find_model(const std::filesystem::path& folder);

/// The folder of a model: `path` itself, or one of `models` in a checkpoint or in the newest
/// checkpoint of a run. Returns `path` if none is found.
[[nodiscard]] std::filesystem::path find_model_folder(const std::filesystem::path& path,
                                                      std::initializer_list<ModelId> models);

}  // namespace neap::spec
