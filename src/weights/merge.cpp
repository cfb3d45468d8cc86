#include "weights/merge.h"

#include <ATen/ATen.h>

#include "base/format.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "weights/model_reader.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;

at::ScalarType dtype_of(const WeightFolder& weights) {
  const std::string& name = weights.find(weights.names().at(0)).tensor->dtype;
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kDouble})
    if (name == dtype_name(type)) return type;
  return at::kBFloat16;
}

}  // namespace

void merge_adapter(const spec::ModelFiles& files, const fs::path& to, SaveOptions options) {
  if (files.adapter.empty())
    throw Error(ErrorCode::kNotFound,
                format("{} has no adapter ({})", files.base.string(), spec::kAdapterConfig));
  for (const char* name : {"config.json", spec::kAdapterConfig}) {
    if (std::error_code error; fs::exists(to / name, error))
      throw Error(ErrorCode::kAlreadyExists,
                  format("{} holds a model already: it has a {}", to.string(), name));
  }
  const spec::Architecture shape = value_or_throw(spec::Architecture::from_folder(files.base));
  const OpenFolders folders;
  const WeightFolder& weights = *folders.weights(files.base);
  const SafetensorsFile adapter = folders.adapter(files.adapter);
  const bool scalar = weights.find("score.weight") ||
                      adapter.find(format("{}score.weight", spec::kPeftPrefix)) != nullptr;
  const spec::Head head = scalar ? spec::Head::kScalar : spec::Head::kLanguageModel;
  const ModelReader reader(files, shape, head, folders);
  if (!options.dtype) options.dtype = dtype_of(weights);
  options.companions = files.tokenizer();
  options.origin = files.base;
  const std::vector<spec::FlatUnit> units = spec::flat_layout(shape, head);
  const at::ScalarType wide = options.dtype == at::kDouble ? at::kDouble : at::kFloat;
  save_model(
      to, shape, head,
      [&](std::size_t unit) {
        const bridge::HostScope host;
        at::Tensor flat = at::zeros({units[unit].elements}, at::TensorOptions().dtype(wide));
        reader.read(unit, {flat});
        return flat;
      },
      options);
}

}  // namespace neap::weights
