// Folders of models and adapters whose units are all there, for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ops/transformer.h"
#include "spec/model/adapter_config.h"
#include "spec/model/layout.h"
#include "weights/checkpoint.h"
#include "weights/tensor_io.h"

namespace neap::weights {

/// In their type, if `options` has none.
inline void save_model(const std::filesystem::path& folder, const spec::Architecture& shape,
                       spec::Head head, const std::vector<at::Tensor>& flat,
                       SaveOptions options = {}) {
  if (!options.dtype) options.dtype = flat.at(0).scalar_type();
  save_model(
      folder, shape, head, [&](std::size_t unit) { return flat.at(unit); }, options);
}

inline void save_adapter(const std::filesystem::path& folder, const spec::Architecture& shape,
                         spec::Head head, const spec::LoraShape& lora,
                         const std::vector<at::Tensor>& flat, const std::string& base = {}) {
  const std::vector<spec::FlatUnit> units = spec::lora_layout(shape, head, lora);
  NamedTensors parameters;
  for (std::size_t u = 0; u < units.size(); ++u)
    for (const spec::Parameter& p : units[u].parameters)
      parameters.emplace_back(p.name, ops::parameter_view(flat.at(u), p));
  std::filesystem::create_directories(folder);
  save_tensors(folder / spec::kAdapterWeights, parameters, {{"format", "pt"}});
  save_adapter_config(folder, shape, head, lora, base);
}

}  // namespace neap::weights
