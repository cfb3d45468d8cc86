// A PEFT adapter added to the weights of its model: LoRA, DoRA magnitudes, trained biases and
// modules saved as a whole.
//
// Threads   one at a time.
//
// Failure   neap::Error on opening if the adapter's kind cannot be added, or if tensors that its
//           configuration needs are missing.
//
// Cost      one matrix at a time, in float32 on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model/adapter_config.h"
#include "spec/model/layout.h"
#include "weights/open_folders.h"
#include "weights/safetensors.h"

namespace neap::weights {

class FolderAdapter {
 public:
  /// `units`: flat_layout of the model.
  FolderAdapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                const std::vector<spec::FlatUnit>& units, const OpenFolders& folders);

  /// Computes W + scale B A for the adapted matrices of a unit. Parameters saved as a whole replace
  /// the model's.
  void apply(std::size_t unit, const at::Tensor& flat) const;
  /// Whether the adapter contains the whole parameter.
  [[nodiscard]] bool replaces(std::string_view parameter) const;

 private:
  // The change of one parameter. Entries are null if the file lacks the tensor.
  struct Change {
    std::size_t unit = 0;
    spec::Parameter parameter;
    const TensorEntry* whole = nullptr;            ///< replaces the parameter
    const TensorEntry *a = nullptr, *b = nullptr;  ///< factors of the product that is added
    const TensorEntry* magnitudes = nullptr;       ///< row norms after the addition
    double scale = 0;
  };
  [[nodiscard]] Change find_change(const spec::Parameter& parameter,
                                   const spec::AdapterConfig& config) const;
  void add_product(const Change& change, const at::Tensor& target) const;

  SafetensorsFile file_;
  std::vector<Change> changes_;
  bool input_major_ = false;
};

}  // namespace neap::weights
