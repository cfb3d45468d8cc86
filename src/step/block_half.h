// What the two halves of a transformer block's pass, attention and MLP, have in common.
//
// Each tensor of SavedBlock has a function that makes it from earlier ones unless it is there.
// Forward makes them in order and drops what the retention does not keep after its last reader;
// backward makes what is missing before it reads it. So every retention runs the same operations on
// the same values.
//
// Order and lifetime of temporaries are part of the meaning: the plan runs this same code with
// operations that only count.
//
// Where ranks divide rows, (N, C) is (n, C) between the halves' first and last products.
#pragma once

#include <utility>

#include "step/block_parts.h"
#include "step/rows.h"

namespace neap::step {

enum class Pass { kInference, kForward, kBackward };

template <class Ops>
class BlockHalf {
 public:
  BlockHalf(Ops& ops, const spec::Architecture& a, const Block<typename Ops::Tensor>& w,
            const Rows<typename Ops::Tensor>& rows, SavedBlock<typename Ops::Tensor>& saved,
            Pass pass, GradientQueue<typename Ops::Tensor>* later = nullptr)
      : ops_(ops), a_(a), w_(w), rows_(rows), s_(saved), pass_(pass), later_(later) {}

 protected:
  using T = typename Ops::Tensor;
  using Saved = spec::SavedTensor;

  [[nodiscard]] bool drops(Saved t) const {
    return pass_ != Pass::kBackward && !s_.retention.keeps(t);
  }
  [[nodiscard]] bool norm_behind() const { return a_.placement.after || a_.placement.over; }

  // From this rank's part of a half's last product to what the half adds to the residual stream.
  T finish_part(T part) {
    T y = sum_of_parts(ops_, rows_, std::move(part));
    scale_part(y);
    return y;
  }
  void scale_part(const T& y) {
    if (a_.residual_scale != 1) ops_.scale_(y, a_.residual_scale);
  }

  // Through the norm behind a half: `d`, of the norm's result, becomes that of the residual stream.
  T behind_backward(const Norm<T>& p, T& read, NormStatistics<T>& statistics, T& d) {
    if (!norm_behind()) return part_gradient(d);
    T dy = norm_backward(ops_, a_, p, std::exchange(read, {}), std::exchange(statistics, {}), d,
                         later_);
    if (a_.placement.over) d = dy;
    return dy;
  }

  // As linear_backward. Where the matrix's gradients come later, nothing is written into x and dy from here on.
  T matrix_backward(const Linear<T>& p, const T& x, const T& dy, T into = {}) {
    return linear_backward(ops_, p, x, dy, std::move(into), later_);
  }

  // That of a half's result from `d`, which the residual stream needs too.
  T part_gradient(const T& d) {
    if (a_.residual_scale == 1) return d;
    T dy = ops_.clone(d);
    scale_part(dy);
    return dy;
  }

  Ops& ops_;
  const spec::Architecture& a_;
  const Block<T>& w_;
  const Rows<T>& rows_;
  SavedBlock<T>& s_;
  Pass pass_;
  GradientQueue<T>* later_;  // of a backward that leaves gradients; else null
};

}  // namespace neap::step
