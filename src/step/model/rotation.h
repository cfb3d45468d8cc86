// Rotary embeddings: the rotation of queries and keys by their positions.
#pragma once

#include <cstdint>
#include <utility>

#include "spec/model/architecture.h"
#include "step/operations/operations.h"
#include "step/operations/rows.h"

namespace neap::step {

/// The rotations of all layers, and of sliding ones if theirs differs. Many passes share them.
template <class T>
struct Rotations {
  Rotation<T> all, sliding;
};

/// `longest` is the maximum number of tokens of the job's sequences. Scaling that depends on the length
/// (dynamic, longrope) assumes it in training, scoring and generation, so their log-probabilities
/// agree.
template <class Ops, class T = typename Ops::Tensor>
Rotations<T> make_rotations(Ops& ops, const spec::Architecture& a, std::int64_t longest) {
  const auto make = [&](const spec::Rotary& rotary) -> Rotation<T> {
    if (rotary.dimensions == 0) return {};
    const spec::RotaryTable table = spec::rotary_table(rotary, longest);
    return {ops.from_host(table.frequencies), table.attention_factor};
  };
  if (a.rotary.dimensions == 0) return {};
  return {make(a.rotary), make(a.sliding_rotary)};
}

/// Whether a block's heads have the rotation of sliding layers.
[[nodiscard]] inline bool rotates_as_sliding(const spec::Architecture& a, std::int64_t block) {
  return a.sliding_rotary.dimensions > 0 && a.window_of(block) > 0;
}
/// The rotation of a block's heads.
template <class T>
[[nodiscard]] Rotation<T> rotation_of(const Rotations<T>& rotations, const spec::Architecture& a,
                                      std::int64_t block) {
  if (!a.rotates(block)) return {};
  return rotates_as_sliding(a, block) ? rotations.sliding : rotations.all;
}

/// The rows at `positions` (P,) int64, with their rotation in `dtype`.
template <class Ops, class T = typename Ops::Tensor>
Rows<T> make_rows(Ops& ops, Dtype dtype, Spans<T> spans, T positions,
                  const Rotations<T>& rotations) {
  Rows<T> rows;
  rows.spans = std::move(spans);
  rows.positions = std::move(positions);
  if (!rotations.all.frequencies.defined()) return rows;
  const T places = ops.convert(rows.positions, Dtype::kFloat32);  // (P,)
  const auto turn = [&](const Rotation<T>& rotation, T& cos, T& sin) {
    const T angles = ops.multiply(ops.view(places, {-1, 1}), rotation.frequencies);  // (P, d / 2)
    const auto scaled = [&](T t) {
      if (rotation.attention_factor != 1) ops.scale_(t, rotation.attention_factor);
      return ops.convert(std::move(t), dtype);
    };
    cos = scaled(ops.cosine(angles));
    sin = scaled(ops.sine(angles));
  };
  turn(rotations.all, rows.cos, rows.sin);
  if (rotations.sliding.frequencies.defined())
    turn(rotations.sliding, rows.sliding_cos, rows.sliding_sin);
  return rows;
}

}  // namespace neap::step
