// Flat units in and out of Hugging Face folders, and named tensors in and out of files.
//
// Failure   neap::Error naming the file and the tensor.
// Cost      one pass over the bytes through a bounded host buffer (64 MiB), whatever the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/transformer.h"
#include "spec/layout.h"

namespace neap::model {

struct LoadReport {
  std::vector<std::string> missing;  ///< left as they were (only a scalar head can be)
  std::vector<std::string> unused;   ///< in the file, not in the model
};

/// True when the folder holds safetensors weights (not only a config.json).
[[nodiscard]] bool has_weights(const std::filesystem::path& folder);

/// Fills flat units (as spec::flat_layout, any device and floating dtype) from a folder's
/// safetensors. Names are matched with and without the base model's prefix. A missing tensor is an
/// error, but for the scalar head, which a language model's folder does not have.
LoadReport load_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                      spec::Head head, const std::vector<at::Tensor>& flat);

struct SaveOptions {
  /// Of the file; empty: the flat tensors'.
  std::optional<at::ScalarType> dtype = std::nullopt;
  Bytes max_shard = Bytes(5'000'000'000);
  /// Tokenizer files and chat template are copied from here. Empty: none.
  std::filesystem::path companions = {};
  /// A language model's generation_config.json is copied from here; made of the shape where this is
  /// empty or has none.
  std::filesystem::path origin = {};
};
/// Writes config.json, generation_config.json and the weights: a folder that transformers loads.
/// Every file is replaced atomically, config.json last.
void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const std::vector<at::Tensor>& flat,
                const SaveOptions& options = {});

/// PEFT's adapter_config.json and adapter_model.safetensors.
void save_adapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                  spec::Head head, const spec::LoraShape& lora, double alpha,
                  const std::vector<at::Tensor>& flat, const std::string& base_model = {});
void load_adapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                  spec::Head head, const spec::LoraShape& lora,
                  const std::vector<at::Tensor>& flat);

/// Adds the folder's adapter, if it holds one (PEFT's LoRA), to `flat`: W + scale B A, computed in float32 on the host a
/// matrix at a time; a scalar head that was trained with it replaces the model's. Returns the names of the parameters that it changed. Fails
/// before it changes anything where the adapter is of a kind that cannot be added so.
std::vector<std::string> merge_adapter(const std::filesystem::path& folder,
                                       const spec::Architecture& shape, spec::Head head,
                                       const std::vector<at::Tensor>& flat);

/// Named tensors (optimizer states, counters) in one safetensors file.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
/// Called with a tensor's position before its contents are touched; tensors come in order.
using BeforeTensor = std::function<void(std::size_t)>;
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {},
                  const BeforeTensor& before = {});
/// Fills each tensor in place; names, shapes and dtypes must be the file's. Returns its metadata.
std::map<std::string, std::string> load_tensors(const std::filesystem::path& file,
                                                const NamedTensors& tensors,
                                                const BeforeTensor& before = {});

}  // namespace neap::model
