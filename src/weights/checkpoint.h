// Models and adapters as folders that transformers and PEFT open. model_reader.h reads them.
//
// Failure   neap::Error naming the file and the tensor.
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
#include "spec/layout.h"
#include "weights/safetensors.h"

namespace neap::weights {

struct SaveOptions {
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of the file
  Bytes max_shard = 5_GiB;
  /// Tokenizer files and chat template are copied from here. Empty: none.
  std::filesystem::path companions = {};
  /// A language model's generation_config.json is copied from here; made of the shape where this is
  /// empty or has none.
  std::filesystem::path origin = {};
  Sync sync = Sync::kOnCommit;
};
/// Writes config.json, generation_config.json and the weights, which come a unit of flat_layout at a time: a
/// folder that transformers loads. Every file is replaced atomically, config.json last. options.dtype has to be
/// set.
using UnitSource = std::function<at::Tensor(std::size_t unit)>;
void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const UnitSource& weights, const SaveOptions& options);
/// What it writes besides weights, of that dtype, into a folder that is there.
void save_model_rest(const std::filesystem::path& folder, const spec::Architecture& shape,
                     spec::Head head, at::ScalarType dtype, const SaveOptions& options);
/// The parameters of units, in order, as tensors of a file.
[[nodiscard]] std::vector<TensorInfo> tensors_of(const std::vector<spec::FlatUnit>& units,
                                                 at::ScalarType dtype);

/// The tokenizer's files, into a folder that is there.
void copy_companions(const std::filesystem::path& folder, const SaveOptions& options);

/// PEFT's adapter_model.safetensors, of units of lora_layout, and adapter_config.json, into a folder that is there.
[[nodiscard]] TensorFiles adapter_file(const std::filesystem::path& folder,
                                       const std::vector<spec::FlatUnit>& units,
                                       at::ScalarType dtype);
void save_adapter_config(const std::filesystem::path& folder, const spec::Architecture& shape,
                         spec::Head head, const spec::LoraShape& lora,
                         const std::string& base_model);

/// An adapter of PEFT's that goes on being one: every tensor of lora_layout, and no others.
class AdapterReader {
 public:
  AdapterReader(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const spec::LoraShape& lora);
  /// Fills units [first, first + flat.size()) of spec::lora_layout, of any floating dtype.
  void read(std::size_t first, const std::vector<at::Tensor>& flat) const;

 private:
  std::vector<spec::FlatUnit> units_;
  SafetensorsFile file_;
};

}  // namespace neap::weights
