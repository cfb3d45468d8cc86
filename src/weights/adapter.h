// A PEFT adapter added to the weights of its model: LoRA, with DoRA's magnitudes, trained biases and
// modules that were saved whole.
//
// Threads   one at a time.
// Failure   neap::Error on opening where the adapter is of a kind that cannot be added, or does not
//           have the tensors that its configuration asks for.
// Cost      a matrix at a time, in float32 on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "spec/adapter_config.h"
#include "spec/layout.h"
#include "weights/safetensors.h"

namespace neap::weights {

class FolderAdapter {
 public:
  /// `units`: flat_layout of the model.
  FolderAdapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                const std::vector<spec::FlatUnit>& units);

  /// W + scale B A for the adapted matrices of a unit; what came whole replaces the model's.
  void apply(std::size_t unit, const at::Tensor& flat) const;
  /// The names of all that it changes.
  [[nodiscard]] std::vector<std::string> parameters() const;
  /// Whether it brings the whole parameter.
  [[nodiscard]] bool replaces(std::string_view parameter) const;

 private:
  // What changes one parameter; entries are null where the file has no such tensor.
  struct Change {
    std::size_t unit = 0;
    spec::Parameter parameter;
    const TensorEntry* whole = nullptr;            ///< in its place
    const TensorEntry *a = nullptr, *b = nullptr;  ///< added
    const TensorEntry* magnitudes = nullptr;       ///< norms of the rows after that
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
