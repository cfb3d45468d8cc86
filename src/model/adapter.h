// The LoRA adapter of a folder, PEFT's files, added to the weights of its model.
//
// Threads   one at a time.
// Failure   neap::Error on opening where the adapter is of a kind that cannot be added.
// Cost      a matrix at a time, in float32 on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"
#include "spec/layout.h"

namespace neap::model {

class FolderAdapter {
 public:
  /// Nothing where the folder has no adapter. `units`: flat_layout of the model.
  [[nodiscard]] static std::optional<FolderAdapter> open(const std::filesystem::path& folder,
                                                         const spec::Architecture& shape,
                                                         const std::vector<spec::FlatUnit>& units);

  /// W + scale B A for the adapted matrices of a unit; what was trained whole (a scalar head)
  /// replaces the model's.
  void apply(std::size_t unit, const at::Tensor& flat) const;
  /// The names of all that it changes.
  [[nodiscard]] std::vector<std::string> parameters() const;
  /// Whether it brings the whole parameter.
  [[nodiscard]] bool replaces(std::string_view parameter) const;

 private:
  // What changes one parameter: A and B, or a tensor in its place.
  struct Change {
    std::size_t unit = 0;
    spec::Parameter parameter;
    std::string a, b, whole;  ///< names in the file
  };
  explicit FolderAdapter(SafetensorsFile file) : file_(std::move(file)) {}

  SafetensorsFile file_;
  std::vector<Change> changes_;
  double scale_ = 0;
  bool input_major_ = false;
};

}  // namespace neap::model
