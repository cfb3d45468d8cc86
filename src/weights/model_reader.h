// Reads a model's parameters from a Hugging Face folder, some units at a time. Units that are not
// requested take no memory. The model's PEFT adapter, if any, is added: W + scale B A.
//
// Threads   one at a time; reading uses libtorch's number of threads.
//
// Failure   neap::Error naming the file and the tensor, on opening if the folder does not fit the
//           model.
//
// Cost      one pass over the bytes of the units (tensor_io.h). An adapter is added in float32 on
//           the host, one matrix at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "spec/model/adapter_config.h"
#include "spec/model/architecture.h"
#include "spec/model/layout.h"
#include "weights/open_folders.h"

namespace neap::weights {

class ModelReader {
 public:
  /// Matches names with and without the base model's prefix. A missing tensor is an error, except
  /// for the scalar head, which a language model's folder lacks.
  ModelReader(const spec::ModelFiles& files, const spec::Architecture& shape, spec::Head head,
              const OpenFolders& folders = {});
  /// Reads the files that spec::find_model finds.
  ModelReader(const std::filesystem::path& folder, const spec::Architecture& shape,
              spec::Head head);
  ModelReader(ModelReader&&) noexcept;
  ~ModelReader();

  /// Parameters that read() leaves unchanged (only a scalar head).
  [[nodiscard]] const std::vector<std::string>& missing() const;
  /// Tensors of the files that the model does not use.
  [[nodiscard]] const std::vector<std::string>& unused() const;

  /// Fills units [first, first + flat.size()) of spec::flat_layout. Each tensor has a unit's flat
  /// elements, on any device and of any floating dtype. An undefined tensor is skipped. Padding
  /// between parameters is not changed.
  void read(std::size_t first, const std::vector<at::Tensor>& flat) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace neap::weights
