#include "spec/optimizer.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace neap::spec {
namespace {

struct Kind {
  const char* name;
  /// Adds everything but the master.
  void (*add)(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state);
};

// Two moments a weight.
void add_adamw(const OptimizerSpec& spec, const FlatUnit& unit, UnitState& state) {
  state.add("exp_avg", {unit.elements}, spec.moments);
  state.add("exp_avg_sq", {unit.elements}, spec.moments);
}

constexpr Kind kKinds[] = {{"adamw", add_adamw}};

}  // namespace

std::int64_t StateTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Bytes StateTensor::bytes() const {
  return tensor_bytes(elements(), dtype);
}

void UnitState::add(std::string name, std::vector<std::int64_t> shape, Dtype dtype,
                    std::int64_t parameter) {
  StateTensor tensor{std::move(name), parameter, std::move(shape), dtype, bytes_};
  bytes_ = round_up(bytes_ + tensor.bytes(), kStateAlignment);
  tensors_.push_back(std::move(tensor));
}

const StateTensor* UnitState::find(std::string_view name, std::int64_t parameter) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const StateTensor& t) {
    return t.name == name && t.parameter == parameter;
  });
  return it == tensors_.end() ? nullptr : &*it;
}

UnitState OptimizerSpec::state(const FlatUnit& unit) const {
  UnitState state;
  for (const Kind& each : kKinds)
    if (kind == each.name) each.add(*this, unit, state);
  if (has_master()) state.add("master", {unit.elements}, master);
  return state;
}

Bytes OptimizerSpec::gradient_bytes(const FlatUnit& unit) const {
  return tensor_bytes(unit.elements, gradients);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

}  // namespace neap::spec
