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
namespace {

// Of sizes [first, end).
std::int64_t product(const std::vector<std::int64_t>& shape, std::size_t first, std::size_t end) {
  std::int64_t out = 1;
  for (std::size_t d = first; d < end; ++d) out *= shape[d];
  return out;
}

void add_run(std::vector<PartRun>& runs, const PartRun& run) {
  if (!runs.empty() && runs.back().part + runs.back().count == run.part &&
      runs.back().whole + runs.back().count == run.whole) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

// Of a tensor of `shape` that begins at `whole`, and its part, which begins at `part`.
void add_cut(std::vector<PartRun>& runs, const spec::ParameterCut& cut,
             const std::vector<std::int64_t>& shape, std::int64_t part, std::int64_t whole) {
  if (!cut.cuts()) return add_run(runs, {part, whole, product(shape, 0, shape.size())});
  const auto dimension = static_cast<std::size_t>(cut.dimension);
  const std::int64_t inner = product(shape, dimension + 1, shape.size());
  for (std::int64_t row = 0; row < product(shape, 0, dimension); ++row) {
    for (const spec::ParameterCut::Range& range : cut.ranges) {
      add_run(runs, {part, whole + range.first * inner, range.count * inner});
      part += range.count * inner;
    }
    whole += shape[dimension] * inner;
  }
}

}  // namespace

std::vector<PartRun> UnitCuts::runs(const spec::WholeState& state, std::int64_t rank) const {
  const spec::TensorShard shard{ranks_, rank};
  std::vector<PartRun> out;
  const std::vector<spec::Parameter>& parts = part_[state.unit].parameters;
  const std::vector<spec::Parameter>& wholes = whole_[state.unit].parameters;
  if (!state.flat()) {
    const auto i = static_cast<std::size_t>(state.parameter);
    spec::ParameterCut cut = spec::cut_of(architecture_, shard, parts[i]);
    const bool cuts = cut.dimension == state.dimension;
    if (cuts ? !parts[i].spread.counts_on(shard) : rank != 0) return out;
    cut.dimension = cuts ? 0 : -1;
    add_cut(out, cut, {wholes[i].shape[static_cast<std::size_t>(state.dimension)]}, 0, 0);
    return out;
  }
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].spread.counts_on(shard))
      add_cut(out, spec::cut_of(architecture_, shard, parts[i]), wholes[i].shape, parts[i].offset,
              wholes[i].offset);
  return out;
}

std::vector<PartRun> UnitCuts::padding(const spec::WholeState& state) const {
  std::vector<PartRun> out;
  if (!state.flat()) return out;
  const spec::FlatUnit& unit = whole_[state.unit];
  std::int64_t count = 0;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const spec::Parameter& p = unit.parameters[i];
    const std::int64_t end = p.offset + p.elements();
    const std::int64_t next =
        i + 1 < unit.parameters.size() ? unit.parameters[i + 1].offset : unit.elements;
    if (next > end) out.push_back({count, end, next - end});
    count += next - end;
  }
  return out;
}

}  // namespace neap::model
