// A model's parameters from a Hugging Face folder, some units at a time: what is not asked for takes
// no memory. Its adapter (PEFT's), if it has one, is added: W + scale B A.
//
// Threads   one at a time; reading uses libtorch's number of threads.
// Failure   neap::Error naming the file and the tensor, on opening where the folder does not fit the
//           model.
// Cost      one pass over the bytes of the units (tensor_io.h); an adapter is added in float32 on the
//           host, a matrix at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "spec/adapter_config.h"
#include "spec/architecture.h"
#include "spec/layout.h"

namespace neap::weights {

class ModelReader {
 public:
  /// Matches names, with and without the base model's prefix. A missing tensor is an error, but for
  /// the scalar head, which a language model's folder does not have.
  ModelReader(const spec::ModelFiles& files, const spec::Architecture& shape, spec::Head head);
  /// The files that spec::find_model finds.
  ModelReader(const std::filesystem::path& folder, const spec::Architecture& shape,
              spec::Head head);
  ModelReader(ModelReader&&) noexcept;
  ~ModelReader();

  /// Parameters that stay as they are (only a scalar head can be).
  [[nodiscard]] const std::vector<std::string>& missing() const;
  /// In the files, not in the model.
  [[nodiscard]] const std::vector<std::string>& unused() const;
  /// Parameters that the adapter changes.
  [[nodiscard]] std::vector<std::string> adapted() const;

  /// Fills units [first, first + flat.size()) of spec::flat_layout: flat tensors of their elements,
  /// any device and floating dtype; undefined: it is not read. Padding between parameters is left as it is.
  void read(std::size_t first, const std::vector<at::Tensor>& flat) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace neap::weights
