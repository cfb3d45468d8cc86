// The norm of a model's gradients, computed from norms of tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "spec/model/tensor_parallel.h"
#include "step/units/trained_unit.h"
#include "step/units/units.h"

namespace neap::step {

/// Elements [first, first + count) of a unit as the ranges whose norms are computed. They are cut
/// between the unit's tiles, and where the sharding of parameters changes.
inline std::vector<spec::SpreadRange> norm_ranges(const spec::FlatUnit& unit, std::int64_t first,
                                                  std::int64_t count) {
  std::vector<spec::SpreadRange> out;
  for (const spec::SpreadRange& range : spec::spread_ranges(unit)) {
    const std::int64_t end = std::min(first + count, range.first + range.count);
    for (std::int64_t at = std::max(first, range.first); at < end;) {
      const std::int64_t next = std::min(end, (at / spec::kSumTile + 1) * spec::kSumTile);
      out.push_back({at, next - at, range.spread});
      at = next;
    }
  }
  return out;
}

/// Writes norms of `ranges` of a unit's gradients to `norms`, from index `at`. The gradients start at
/// the unit's element `first`.
template <class Ops, class T = typename Ops::Tensor>
void put_norms(Ops& ops, const T& norms, std::int64_t at, const T& gradients, std::int64_t first,
               const std::vector<spec::SpreadRange>& ranges) {
  const Dtype dtype = ops.dtype(norms);
  for (const spec::SpreadRange& range : ranges) {
    const T part = ops.narrow(gradients, 0, range.first - first, range.count);
    ops.copy_(ops.narrow(norms, 0, at++, 1), ops.norm_of(ops.convert(part, dtype)));
  }
}

/// Norms of the ranges of `gradients`, which start at the unit's element `first`.
template <class Ops, class T = typename Ops::Tensor>
RangeNorms<T> part_norms(Ops& ops, const spec::FlatUnit& unit, std::int64_t first,
                         const T& gradients, const spec::TensorShard& shard) {
  const std::vector<spec::SpreadRange> ranges = norm_ranges(unit, first, gradients.size(0));
  RangeNorms<T> out{ops.empty({std::ssize(ranges)}, wide(ops.dtype(gradients))), {}};
  put_norms(ops, out.values, 0, gradients, first, ranges);
  for (const spec::SpreadRange& range : ranges)
    out.counts_here.push_back(range.spread.counts_on(shard));
  return out;
}

/// Norms of the ranges of `pieces` of a model `w`, one after another, with one read. They are zero for
/// elements that another rank counts: an earlier rank of the tensor-parallel group, or the first stage
/// for a tied embedding. For offloaded units the source has computed them when the gradients were
/// complete.
template <class Ops, class T = typename Ops::Tensor>
std::vector<double> piece_norms(Ops& ops, const std::vector<TrainedUnit<T>>& pieces,
                                const Weights<T>* w = nullptr) {
  const spec::Architecture architecture = w != nullptr ? w->architecture : spec::Architecture();
  const bool copies = w != nullptr && spec::copies_table(architecture, w->head);
  const auto is_copy = [&](const TrainedUnit<T>& piece) {
    return copies && piece.unit.find(spec::Module::kTokenEmbedding) != nullptr;
  };
  std::vector<std::vector<spec::SpreadRange>> ranges(pieces.size());  // for pieces on the device
  std::int64_t count = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const TrainedUnit<T>& piece = pieces[i];
    if (piece.on_host) continue;
    ranges[i] = norm_ranges(piece.unit, piece.first, piece.gradients.size(0));
    if (!is_copy(piece)) count += std::ssize(ranges[i]);
  }
  std::vector<double> taken;
  if (count > 0) {
    const auto any = std::find_if(pieces.begin(), pieces.end(),
                                  [](const TrainedUnit<T>& piece) { return !piece.on_host; });
    const T norms = ops.empty({count}, wide(ops.dtype(any->gradients)));
    std::int64_t at = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].on_host || is_copy(pieces[i])) continue;
      put_norms(ops, norms, at, pieces[i].gradients, pieces[i].first, ranges[i]);
      at += std::ssize(ranges[i]);
    }
    taken = ops.read_all(norms);
  }
  std::vector<double> out;
  auto next = taken.begin();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].on_host) {
      std::vector<double> norms = w->source->norms(key_of(pieces[i].unit, architecture));
      if (is_copy(pieces[i])) std::fill(norms.begin(), norms.end(), 0);
      out.insert(out.end(), norms.begin(), norms.end());
      continue;
    }
    for (const spec::SpreadRange& range : ranges[i]) {
      const double norm = is_copy(pieces[i]) ? 0 : *next++;
      out.push_back(range.spread.counts_on(architecture.tensor) ? norm : 0);
    }
  }
  return out;
}

/// For each of these norms, the place of its unit in the whole model.
template <class T>
std::vector<double> piece_places(const std::vector<TrainedUnit<T>>& pieces, const Weights<T>& w) {
  std::vector<double> out;
  for (const TrainedUnit<T>& piece : pieces) {
    const spec::FlatUnit& unit = piece.unit;
    const bool embeds = unit.find(spec::Module::kTokenEmbedding) != nullptr;
    const std::int64_t place = unit.block >= 0 ? unit.block
                               : embeds        ? -1
                                               : w.architecture.num_hidden_layers;
    const std::size_t count = piece.on_host
                                  ? w.source->norms(key_of(unit, w.architecture)).size()
                                  : norm_ranges(unit, piece.first, piece.gradients.size(0)).size();
    out.insert(out.end(), count, static_cast<double>(place));
  }
  return out;
}

/// The norm of all gradients from the norms of all ranges, in order of stages, added on the host.
/// The result is bitwise the same however units are cut between tiles, also after a resume.
template <class Ops>
double joint_norm(Ops& ops, const std::vector<double>& norms) {
  double squares = 0;
  for (const double norm : ops.join_stages(norms)) squares += norm * norm;
  return std::sqrt(ops.total_over(squares, spec::Axis::kTensor));
}
/// The same in the order of `places`, for stages that have blocks of several model parts.
template <class Ops>
double joint_norm(Ops& ops, const std::vector<double>& norms, const std::vector<double>& places) {
  const std::vector<double> all = ops.join_stages(norms), at = ops.join_stages(places);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return at[a] < at[b]; });
  double squares = 0;
  for (const std::size_t i : order) squares += all[i] * all[i];
  return std::sqrt(ops.total_over(squares, spec::Axis::kTensor));
}

/// Sums gradients of parameters for which several ranks of the tensor-parallel group each compute a
/// term.
template <class Ops, class T = typename Ops::Tensor>
void sum_spread_gradients(Ops& ops, const spec::FlatUnit& unit, const T& gradients,
                          const spec::TensorShard& shard) {
  for (const spec::SpreadRange& range : spec::spread_ranges(unit)) {
    if (!range.spread.summed) continue;
    const T mine = ops.narrow(gradients, 0, range.first, range.count);
    if (range.spread.parts == 1) {
      ops.sum_over_(mine, spec::Axis::kTensor);
      continue;
    }
    const T all = ops.zeros({range.spread.parts * range.count}, ops.dtype(mine));
    const T place = ops.narrow(all, 0, range.spread.part_of(shard) * range.count, range.count);
    ops.copy_(place, mine);
    ops.sum_over_(all, spec::Axis::kTensor);
    ops.copy_(mine, place);
  }
}

/// Reduces complete gradients (elements,) over ranks before they are offloaded. Returns the norms
/// of this rank's elements.
template <class Ops, class T = typename Ops::Tensor>
RangeNorms<T> complete_gradients(Ops& ops, const Weights<T>& w, UnitKey key, const T& gradients) {
  // Reductions count blocks in the whole model.
  const UnitKey number = key < 0 ? key : w.architecture.block_at(key);
  const auto [unit, first, count] = w.sink->leaving(number);
  const spec::TensorShard& shard = w.architecture.tensor;
  sum_spread_gradients(ops, *unit, gradients, shard);
  w.sink->sum(number, gradients);
  if (count == 0) return {};
  return part_norms(ops, *unit, first, ops.narrow(gradients, 0, first, count), shard);
}

}  // namespace neap::step
