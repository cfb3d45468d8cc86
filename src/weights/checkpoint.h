// Writes models and adapters as folders that transformers and PEFT open. model_reader.h reads them.
//
// Failure   neap::Error naming the file and the tensor.
//
// Cost      one pass over the bytes (tensor_io.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "ops/transformer.h"
#include "spec/model/layout.h"
#include "weights/open_folders.h"
#include "weights/safetensors.h"

namespace neap::weights {

struct SaveOptions {
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of the file
  Bytes max_shard = 5_GiB;
  /// Folder from which tokenizer files and chat template are copied. Empty: none.
  std::filesystem::path companions = {};
  /// Folder from which a language model's generation_config.json is copied. If it is empty or lacks
  /// the file, the file is made from the shape.
  std::filesystem::path origin = {};
  Sync sync = Sync::kOnCommit;
};
/// Writes config.json, generation_config.json and the weights into a folder that transformers
/// loads. The weights are given one unit of flat_layout at a time. Every file is replaced
/// atomically, config.json last. options.dtype must be set.
using UnitSource = std::function<at::Tensor(std::size_t unit)>;
void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const UnitSource& weights, const SaveOptions& options);
/// Writes all files except the weights, for weights of this dtype, into an existing folder.
void save_model_rest(const std::filesystem::path& folder, const spec::Architecture& shape,
                     spec::Head head, at::ScalarType dtype, const SaveOptions& options);
/// The parameters of units, in order, as tensors of a file.
[[nodiscard]] std::vector<TensorInfo> tensors_of(const std::vector<spec::FlatUnit>& units,
                                                 at::ScalarType dtype);

/// Copies the tokenizer's files into an existing folder.
void copy_companions(const std::filesystem::path& folder, const SaveOptions& options);

/// adapter_file() describes PEFT's adapter_model.safetensors with the units of lora_layout.
/// save_adapter_config() writes adapter_config.json. The folder must exist.
[[nodiscard]] TensorFiles adapter_file(const std::filesystem::path& folder,
                                       const std::vector<spec::FlatUnit>& units,
                                       at::ScalarType dtype);
void save_adapter_config(const std::filesystem::path& folder, const spec::Architecture& shape,
                         spec::Head head, const spec::LoraShape& lora,
                         const std::string& base_model);

/// Reads a PEFT adapter to train it further. It must have exactly the tensors of lora_layout.
class AdapterReader {
 public:
  AdapterReader(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const spec::LoraShape& lora, const OpenFolders& folders = {});
  /// Fills units [first, first + flat.size()) of spec::lora_layout. Tensors may have any floating
  /// dtype.
  void read(std::size_t first, const std::vector<at::Tensor>& flat) const;

 private:
  std::vector<spec::FlatUnit> units_;
  SafetensorsFile file_;
};

}  // namespace neap::weights
