#include "weights/model_reader.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <set>

#include "base/format.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "ops/transformer.h"
#include "weights/adapter.h"
#include "weights/safetensors.h"
#include "weights/tensor_io.h"
#include "weights/units_in_files.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

// Whether an unused tensor is expected: buffers that old files store with parameters, and copies of
// a tied matrix.
bool is_expected_extra(const std::string& name, const spec::Architecture& shape) {
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
      name.ends_with("rotary_emb.inv_freq"))
    return true;
  return shape.tie_word_embeddings && name == "lm_head.weight";
}

// The tensors that a parameter is read from.
struct Source {
  WeightFolder::Found values;
  WeightFolder::Found scale;  ///< scale of 8-bit values; null otherwise
};

// Quantized checkpoints with 8-bit floats have a scale to multiply by. "X_scale_inv" has one per
// block of 128 x 128 (DeepSeek). "X_scale" has one in total or one per row (compressed-tensors).
WeightFolder::Found scale_of(const WeightFolder& weights, const WeightFolder::Found& values) {
  if (!values.tensor->dtype.starts_with("F8_")) return {};
  for (const char* end : {"_scale_inv", "_scale"}) {
    if (const auto found = weights.find(values.tensor->name + end)) return found;
  }
  return {};
}

// Expands the scale to every element of a (rows, columns) matrix.
Tensor spread(Tensor scale, const Tensor& values, const std::string& name) {
  constexpr std::int64_t kBlock = 128;
  const auto blocks = [](std::int64_t size) { return (size + kBlock - 1) / kBlock; };
  if (scale.numel() == 1) return scale.view(at::IntArrayRef());
  const std::int64_t rows = values.size(0);
  const std::int64_t columns = values.dim() == 2 ? values.size(1) : 1;
  if (scale.numel() == rows) return scale.view({rows, 1});
  if (scale.dim() != 2 || scale.size(0) != blocks(rows) || scale.size(1) != blocks(columns))
    throw Error(ErrorCode::kUnsupported,
                format("\"{}\": the scales are neither one, nor one a row, nor one for each {} x "
                       "{} values",
                       name, kBlock, kBlock));
  scale = scale.repeat_interleave(kBlock, 0).repeat_interleave(kBlock, 1);
  return scale.narrow(0, 0, rows).narrow(1, 0, columns);
}

void read_scaled(const Source& source, const Tensor& target) {
  Tensor values = read_float(*source.values.file, *source.values.tensor);
  const Tensor scale = read_float(*source.scale.file, *source.scale.tensor);
  values.mul_(spread(scale, values, source.scale.tensor->name));
  target.copy_(values);
}

}  // namespace

struct ModelReader::State {
  std::vector<spec::FlatUnit> units;
  std::shared_ptr<const WeightFolder> weights;
  std::vector<std::vector<Source>> sources;  ///< sources of each unit's parameters; null if missing
  std::optional<FolderAdapter> adapter;
  std::vector<std::string> missing, unused;
};

ModelReader::ModelReader(ModelReader&&) noexcept = default;
ModelReader::~ModelReader() = default;

ModelReader::ModelReader(const fs::path& folder, const spec::Architecture& shape, spec::Head head)
    : ModelReader(value_or_throw(spec::find_model(folder)), shape, head) {}

ModelReader::ModelReader(const spec::ModelFiles& files, const spec::Architecture& shape,
                         spec::Head head, const OpenFolders& folders) {
  folders.check_base(files);
  auto state = std::make_unique<State>();
  state->units = spec::flat_layout(shape, head);
  state->weights = folders.weights(files.base);
  if (!files.adapter.empty()) state->adapter.emplace(files.adapter, shape, state->units, folders);
  std::set<std::string> used;
  for (const spec::FlatUnit& unit : state->units) {
    std::vector<Source>& sources = state->sources.emplace_back();
    for (const spec::Parameter& parameter : unit.parameters) {
      Source& source = sources.emplace_back();
      source.values = find_parameter(*state->weights, parameter.name);
      if (source.values) {
        check_tensor(*source.values.file, *source.values.tensor, parameter.shape, at::kFloat);
        source.scale = scale_of(*state->weights, source.values);
        used.insert(source.values.tensor->name);
        if (source.scale) used.insert(source.scale.tensor->name);
      } else if (parameter.name != "score.weight") {
        throw Error(ErrorCode::kNotFound,
                    format("{} has no tensor \"{}\"", files.base.string(), parameter.name));
      } else if (!state->adapter || !state->adapter->replaces(parameter.name)) {
        state->missing.push_back(parameter.name);
      }
    }
  }
  for (const std::string& name : state->weights->names()) {
    if (!used.contains(name) && !is_expected_extra(name, shape)) state->unused.push_back(name);
  }
  state_ = std::move(state);
}

const std::vector<std::string>& ModelReader::missing() const {
  return state_->missing;
}
const std::vector<std::string>& ModelReader::unused() const {
  return state_->unused;
}

void ModelReader::read(std::size_t first, const std::vector<Tensor>& flat) const {
  const at::NoGradGuard no_grad;
  const bridge::HostScope host;
  if (first + flat.size() > state_->units.size())
    throw Error(ErrorCode::kInvalidArgument,
                format("The model has {} flat units; {} were given from {}", state_->units.size(),
                       flat.size(), first));
  std::vector<TensorRead> reads;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    if (!flat[i].defined()) continue;
    const spec::FlatUnit& unit = state_->units[first + i];
    ops::check_flat(flat[i], unit, "weights");
    for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
      const Source& source = state_->sources[first + i][p];
      const Tensor target = ops::parameter_view(flat[i], unit.parameters[p]);
      if (source.values && !source.scale)
        reads.push_back({source.values.file, source.values.tensor, target});
    }
  }
  read_tensors(reads);
  for (std::size_t i = 0; i < flat.size(); ++i) {
    if (!flat[i].defined()) continue;
    const spec::FlatUnit& unit = state_->units[first + i];
    for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
      const Source& source = state_->sources[first + i][p];
      if (source.scale) read_scaled(source, ops::parameter_view(flat[i], unit.parameters[p]));
    }
    if (state_->adapter) state_->adapter->apply(first + i, flat[i]);
  }
}

}  // namespace neap::weights
