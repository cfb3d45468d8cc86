#include "weights/unit_cuts.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "ops/transformer.h"

namespace neap::weights {

using at::Tensor;

UnitCuts::UnitCuts(spec::Architecture architecture, std::int64_t ranks,
                   std::vector<spec::FlatUnit> whole, std::vector<spec::FlatUnit> part)
    : architecture_(std::move(architecture)),
      ranks_(ranks),
      whole_(std::move(whole)),
      part_(std::move(part)) {}

std::vector<PartRun> within(const std::vector<PartRun>& runs, std::int64_t first,
                            std::int64_t count) {
  std::vector<PartRun> out;
  for (const PartRun& run : runs) {
    const std::int64_t begin = std::max(run.part, first);
    const std::int64_t end = std::min(run.part + run.count, first + count);
    if (begin < end) out.push_back({begin - first, run.whole + begin - run.part, end - begin});
  }
  return out;
}

namespace {

// Copies a cut's part of a tensor along a dimension, or the whole tensor.
void take_part(const spec::ParameterCut& cut, std::int64_t dimension, const Tensor& whole,
               const Tensor& part) {
  const at::NoGradGuard no_grad;
  if (!cut.cuts()) {
    part.copy_(whole);
    return;
  }
  std::int64_t at = 0;
  for (const spec::ParameterCut::Range& range : cut.ranges) {
    part.narrow(dimension, at, range.count)
        .copy_(whole.narrow(dimension, range.first, range.count));
    at += range.count;
  }
}

}  // namespace

void UnitCuts::take(std::size_t unit, std::int64_t rank, const Tensor& whole,
                    const Tensor& part) const {
  for (std::size_t i = 0; i < part_[unit].parameters.size(); ++i) {
    const spec::Parameter& p = part_[unit].parameters[i];
    const spec::ParameterCut cut = spec::cut_of(architecture_, {ranks_, rank}, p);
    take_part(cut, cut.dimension, ops::parameter_view(whole, whole_[unit].parameters[i]),
              ops::parameter_view(part, p));
  }
}

void UnitCuts::take(const spec::WholeState& state, std::int64_t rank, const Tensor& whole,
                    const Tensor& part) const {
  if (state.flat()) return take(state.unit, rank, whole, part);
  const spec::Parameter& p =
      part_[state.unit].parameters[static_cast<std::size_t>(state.parameter)];
  spec::ParameterCut cut = spec::cut_of(architecture_, {ranks_, rank}, p);
  if (cut.dimension != state.dimension) cut = {};  // one number per place of the other one
  take_part(cut, 0, whole, part);
}

namespace {

// Product of the sizes [first, end).
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

// Adds the runs of a tensor of `shape` that begins at `whole`, and of its part, which begins at
// `part`.
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

std::vector<PartRun> UnitCuts::runs(std::size_t unit, std::size_t parameter,
                                    std::int64_t rank) const {
  const spec::TensorShard shard{ranks_, rank};
  const spec::Parameter& part = part_[unit].parameters[parameter];
  std::vector<PartRun> out;
  if (part.spread.counts_on(shard))
    add_cut(out, spec::cut_of(architecture_, shard, part), whole_[unit].parameters[parameter].shape,
            part.offset, 0);
  return out;
}

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
    for (const PartRun& run : runs(state.unit, i, rank))
      add_run(out, {run.part, wholes[i].offset + run.whole, run.count});
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

}  // namespace neap::weights
