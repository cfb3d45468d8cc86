// A trained unit with memory of its own, for tests of optimizers.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/aten_ops.h"
#include "step/units/optimizer.h"

namespace neap::testing {

using AtenUnit = step::TrainedUnit<at::Tensor>;

/// Parameters "p0", "p1" ... of these shapes, laid out as spec::flat_layout does.
inline spec::FlatUnit unit_of(const std::vector<std::vector<std::int64_t>>& shapes) {
  spec::FlatUnit unit;
  unit.name = "unit";
  for (const auto& shape : shapes) {
    spec::Parameter p;
    p.name = "p" + std::to_string(unit.parameters.size());
    p.shape = shape;
    p.offset = unit.elements;
    const std::int64_t align = spec::kParameterAlignment;
    unit.elements = (p.offset + p.elements() + align - 1) / align * align;
    unit.parameters.push_back(std::move(p));
  }
  return unit;
}

/// Everything zero.
inline AtenUnit zero_unit(const spec::OptimizerSpec& optimizer, const spec::FlatUnit& unit,
                          std::int64_t index = 0) {
  const auto zeros = [](std::int64_t n, spec::Dtype dtype) {
    return at::zeros({n}, bridge::to_aten(dtype));
  };
  return step::make_trained_unit(
      optimizer, unit, index, zeros(unit.elements, optimizer.weights),
      zeros(unit.elements, optimizer.gradients),
      [&](const spec::StateTensor& t) { return zeros(t.elements, t.dtype); });
}

/// The parameter as a view of a flat tensor of its unit.
inline at::Tensor part_of(const AtenUnit& unit, const at::Tensor& flat, std::size_t parameter) {
  const spec::Parameter& p = unit.unit.parameters[parameter];
  return flat.narrow(0, p.offset, p.elements()).view(p.shape);
}

inline spec::OptimizerSpec spec_of(const spec::OptimizerConfig& config,
                                   spec::Dtype weights = spec::Dtype::kFloat32) {
  return value_or_throw(spec::OptimizerSpec::of(config, weights));
}

}  // namespace neap::testing
