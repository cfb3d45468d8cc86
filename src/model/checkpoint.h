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
#include "model/safetensors.h"
#include "model/transformer.h"
#include "spec/layout.h"

namespace neap::model {

struct SaveOptions {
  /// Of the file; empty: the flat tensors'.
  std::optional<at::ScalarType> dtype = std::nullopt;
  Bytes max_shard = 5_GiB;
  /// Tokenizer files and chat template are copied from here. Empty: none.
  std::filesystem::path companions = {};
  /// A language model's generation_config.json is copied from here; made of the shape where this is
  /// empty or has none.
  std::filesystem::path origin = {};
  Sync sync = Sync::kOnCommit;
};
/// Writes config.json, generation_config.json and the weights: a folder that transformers loads.
/// Every file is replaced atomically, config.json last.
void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const std::vector<at::Tensor>& flat,
                const SaveOptions& options = {});
/// The same of weights that come a unit of flat_layout at a time; options.dtype has to be set.
using UnitSource = std::function<at::Tensor(std::size_t unit)>;
void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                spec::Head head, const UnitSource& weights, const SaveOptions& options);

/// The tokenizer's files, into a folder that is there.
void copy_companions(const std::filesystem::path& folder, const SaveOptions& options);

/// PEFT's adapter_config.json and adapter_model.safetensors.
void save_adapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                  spec::Head head, const spec::LoraShape& lora, const std::vector<at::Tensor>& flat,
                  const std::string& base_model = {}, Sync sync = Sync::kOnCommit);

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

}  // namespace neap::model
