#include "model/unit_cuts.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "model/transformer.h"

namespace neap::model {

using at::Tensor;

UnitCuts::UnitCuts(spec::Architecture architecture, std::int64_t ranks,
                   std::vector<spec::FlatUnit> whole, std::vector<spec::FlatUnit> part)
    : architecture_(std::move(architecture)),
      ranks_(ranks),
      whole_(std::move(whole)),
      part_(std::move(part)) {}

namespace {

// visit(view of the whole, view of the part) for what a cut has of tensors along its dimension, or of all.
template <class Visit>
void for_each_part(const spec::ParameterCut& cut, std::int64_t dimension, const Tensor& whole,
                   const Tensor& part, const Visit& visit) {
  if (!cut.cuts()) return visit(whole, part);
  std::int64_t at = 0;
  for (const spec::ParameterCut::Range& range : cut.ranges) {
    visit(whole.narrow(dimension, range.first, range.count),
          part.narrow(dimension, at, range.count));
    at += range.count;
  }
}
void copy_to_part(const Tensor& whole, Tensor part) {
  part.copy_(whole);
}
void copy_to_whole(Tensor whole, const Tensor& part) {
  whole.copy_(part);
}

}  // namespace

template <class Visit>
void UnitCuts::for_each_range(std::size_t unit, std::int64_t rank, const Tensor& whole,
                              const Tensor& part, const Visit& visit) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < part_[unit].parameters.size(); ++i) {
    const spec::Parameter& p = part_[unit].parameters[i];
    const spec::ParameterCut cut = spec::cut_of(architecture_, {ranks_, rank}, p);
    for_each_part(cut, cut.dimension, parameter_view(whole, whole_[unit].parameters[i]),
                  parameter_view(part, p), visit);
  }
}

template <class Visit>
void UnitCuts::for_each_range(const spec::WholeState& state, std::int64_t rank, const Tensor& whole,
                              const Tensor& part, const Visit& visit) const {
  if (state.flat()) return for_each_range(state.unit, rank, whole, part, visit);
  const at::NoGradGuard no_grad;
  const spec::Parameter& p =
      part_[state.unit].parameters[static_cast<std::size_t>(state.parameter)];
  spec::ParameterCut cut = spec::cut_of(architecture_, {ranks_, rank}, p);
  if (cut.dimension != state.dimension) cut = {};  // a number for each place of the other dimension
  for_each_part(cut, 0, whole, part, visit);
}

void UnitCuts::take(std::size_t unit, std::int64_t rank, const Tensor& whole,
                    const Tensor& part) const {
  for_each_range(unit, rank, whole, part, copy_to_part);
}
void UnitCuts::put(std::size_t unit, std::int64_t rank, const Tensor& part,
                   const Tensor& whole) const {
  for_each_range(unit, rank, whole, part, copy_to_whole);
}
void UnitCuts::take(const spec::WholeState& state, std::int64_t rank, const Tensor& whole,
                    const Tensor& part) const {
  for_each_range(state, rank, whole, part, copy_to_part);
}
void UnitCuts::put(const spec::WholeState& state, std::int64_t rank, const Tensor& part,
                   const Tensor& whole) const {
  for_each_range(state, rank, whole, part, copy_to_whole);
}

std::int64_t UnitCuts::elements(const spec::WholeState& state) const {
  const spec::FlatUnit& unit = whole_[state.unit];
  if (state.flat()) return unit.elements;
  return unit.parameters[static_cast<std::size_t>(state.parameter)]
      .shape[static_cast<std::size_t>(state.dimension)];
}

}  // namespace neap::model
