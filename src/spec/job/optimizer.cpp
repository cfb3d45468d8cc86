#include "spec/job/optimizer.h"

#include <algorithm>

#include "base/format.h"
#include "spec/job/job.h"
#include "spec/types/names.h"

namespace neap::spec {
namespace {

/// The inputs of an element's update, in addition to that element's own state.
enum class Step : std::uint8_t {
  kElements,  ///< nothing
  kMatrices,  ///< other elements of its parameter
};

struct Kind {
  std::string_view name;
  OptimizerKind value;
  /// Adds all state tensors except the master copy.
  void (*add)(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state);
  Step step;
  std::vector<std::string> keys;  ///< see optimizer_keys()
};

// Two moments per weight.
void add_adamw(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state) {
  state.add("exp_avg", unit.elements, spec.states);
  state.add("exp_avg_sq", unit.elements, spec.states);
}

// For a matrix, one number per row and one per column. For a vector, one number per element.
void add_factored(const std::string& name, const OptimizerSpec& spec, const FlatUnit& unit,
                  UnitState& state) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& p = unit.parameters[i];
    const auto index = static_cast<std::int64_t>(i);
    if (p.shape.size() == 2) {
      state.add(name + "_row", p.shape[0], spec.states, index);
      state.add(name + "_col", p.shape[1], spec.states, index, 1);
    } else {
      state.add(name, p.elements(), spec.states, index);
    }
  }
}

void add_momentum(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state) {
  if (spec.momentum) state.add("momentum_buffer", unit.elements, spec.states);
}

void add_adafactor(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state) {
  add_factored("exp_avg_sq", spec, unit, state);
}

void add_sm3(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state) {
  add_factored("accumulator", spec, unit, state);
  add_momentum(spec, unit, state);
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"adamw",
       OptimizerKind::kAdamW,
       add_adamw,
       Step::kElements,
       {"beta1", "beta2", "eps", "state_dtype"}},
      {"adafactor",
       OptimizerKind::kAdafactor,
       add_adafactor,
       Step::kMatrices,
       {"beta2_decay", "clip_threshold", "eps1", "eps2", "relative_step", "state_dtype"}},
      {"sm3", OptimizerKind::kSm3, add_sm3, Step::kMatrices, {"momentum", "state_dtype"}},
      {"sgd",
       OptimizerKind::kSgd,
       add_momentum,
       Step::kElements,
       {"momentum", "nesterov", "state_dtype"}},
  };
  return kKinds;
}

const Kind& find(OptimizerKind kind) {
  return row_of(kinds(), kind);
}

}  // namespace

void UnitState::add(std::string name, std::int64_t elements, Dtype dtype, std::int64_t parameter,
                    int dimension) {
  StateTensor tensor{std::move(name), parameter, dimension, elements, dtype, bytes_};
  bytes_ = round_up(bytes_ + tensor.bytes(), kStateAlignment);
  tensors_.push_back(std::move(tensor));
}

const StateTensor* UnitState::find(std::string_view name, std::int64_t parameter) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const StateTensor& t) {
    return t.name == name && t.parameter == parameter;
  });
  return it == tensors_.end() ? nullptr : &*it;
}

std::string_view to_string(OptimizerKind kind) {
  return find(kind).name;
}

Result<OptimizerKind> parse_optimizer(std::string_view name) {
  return parse_name(kinds(), name, "An optimizer");
}

std::vector<std::string> optimizer_names() {
  return names_of(kinds());
}

std::vector<std::string> optimizer_keys(OptimizerKind kind) {
  return find(kind).keys;
}

bool is_elementwise(OptimizerKind kind) {
  return find(kind).step == Step::kElements;
}

Result<OptimizerSpec> OptimizerSpec::of(const OptimizerConfig& config, Dtype weights) {
  OptimizerSpec spec;
  spec.weights = weights;
  NEAP_TRY_ASSIGN(spec.kind, parse_optimizer(config.kind));
  spec.gradients = config.gradient_dtype;
  spec.states = config.state_dtype;
  spec.master = config.master_dtype;
  for (const auto& [key, dtype] :
       {std::pair{"gradient_dtype", spec.gradients}, std::pair{"state_dtype", spec.states},
        std::pair{"master_dtype", spec.master}}) {
    if (dtype != Dtype::kFloat32 && dtype != Dtype::kBfloat16)
      return Status(
          ErrorCode::kInvalidArgument,
          format("{} is \"{}\"; it can be \"float32\" or \"bfloat16\"", key, to_string(dtype)));
  }
  spec.momentum = config.momentum > 0;
  const bool exact = weights == Dtype::kFloat64;
  for (const auto& [key, dtype] :
       {std::pair{"master_dtype", spec.master}, std::pair{"gradient_dtype", spec.gradients},
        std::pair{"state_dtype", exact ? spec.states : weights}}) {
    if (element_bytes(dtype) < std::min(element_bytes(weights), element_bytes(Dtype::kFloat32)))
      return Status(ErrorCode::kInvalidArgument,
                    format("{} is \"bfloat16\", but the weights are {} (device.dtype)", key,
                           to_string(weights)));
  }
  if (exact) spec.gradients = spec.states = spec.master = weights;
  return spec;
}

UnitState OptimizerSpec::state(const FlatUnit& unit) const {
  UnitState state;
  find(kind).add(*this, unit, state);
  if (has_master()) state.add("master", unit.elements, master);
  return state;
}

Bytes OptimizerSpec::gradient_bytes(const FlatUnit& unit) const {
  return tensor_bytes(unit.elements, gradients);
}

}  // namespace neap::spec
