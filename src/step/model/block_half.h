// Common parts of the two halves of a block's pass: attention and MLP.
//
// Each tensor of SavedBlock has a function that computes it from earlier ones if it is missing.
// Forward computes them in order, and drops those that the retention does not keep after their last
// use. Backward recomputes what is missing before reading it. So every retention runs the same
// operations on the same values.
//
// The order and lifetime of temporaries matter: a plan runs this code with counting operations.
//
// With sequence parallelism, (N, C) is (n, C) between the halves' first and last matrix products.
#pragma once

#include <utility>

#include "step/model/block_parts.h"
#include "step/operations/rows.h"

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

  // Makes a half's addition to the residual stream from this rank's part of its last product.
  T finish_part(T part) {
    T y = sum_of_parts(ops_, rows_, std::move(part));
    scale_part(y);
    return y;
  }
  void scale_part(const T& y) {
    if (a_.residual_scale != 1) ops_.scale_(y, a_.residual_scale);
  }

  // Whether the product with `last`, a half's last matrix, is added to the residual stream in
  // place. The norm before the half then adds its bias.
  [[nodiscard]] bool adds_in_place(const Linear<T>& last) const {
    return rows_.fused && !a_.parallel_residual && !a_.placement.after && a_.residual_scale == 1 &&
           (a_.placement.before || !last.bias.defined()) && ops_.ranks(spec::Axis::kTensor) == 1;
  }
  // Whether the kernel of a half's first product, which takes few rows of x, also computes the norm before
  // it. The half's last product, with `last`, then adds the bias.
  [[nodiscard]] bool normalizes_within(const T& x, std::int64_t out, const Linear<T>& last) const {
    const Dtype dtype = ops_.dtype(x);
    if (!rows_.fused || !a_.placement.before || ops_.ranks(spec::Axis::kTensor) > 1 ||
        !ops_.own_normed_rows(dtype, x.size(0), x.size(1), out))
      return false;
    return !adds_in_place(last) || !last.bias.defined() ||
           takes_few_rows<Ops, T>(ops_, {&last}, dtype, x.size(0));
  }
  // x times `last`, added to `sum` if it is defined.
  T last_product(const Linear<T>& last, const T& x, T sum) {
    return rows_.fused ? decode_linear(ops_, last, x, std::move(sum), adds_last_bias_)
                       : linear(ops_, last, x, std::move(sum));
  }
  // The norm before a half that ends with `last`.
  T norm_before(const Norm<T>& p, const T& x, NormStatistics<T>& statistics,
                const Linear<T>& last) {
    if (!rows_.fused) return norm(ops_, a_, p, x, &statistics);
    return ops_.norm_and_add_(a_.norm, x, p.weight, p.bias, a_.norm_eps,
                              adds_in_place(last) ? last.bias : T());
  }

  // Backward of the norm after a half: `d`, the gradient of the norm's result, becomes that of the
  // residual stream.
  T behind_backward(const Norm<T>& p, T& read, NormStatistics<T>& statistics, T& d) {
    if (!norm_behind()) return part_gradient(d);
    T dy = norm_backward(ops_, a_, p, std::exchange(read, {}), std::exchange(statistics, {}), d,
                         later_);
    if (a_.placement.over) d = dy;
    return dy;
  }

  // As linear_backward. If the matrix's gradients are computed later, x and dy must not be modified
  // after this call.
  T matrix_backward(const Linear<T>& p, const T& x, const T& dy, T into = {},
                    Fp8Copies<T>* copies = nullptr) {
    return linear_backward(ops_, p, x, dy, std::move(into), later_, copies);
  }

  // The gradient of a half's result from `d`, which the residual stream also needs.
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
  GradientQueue<T>* later_;      // set if the backward defers weight gradients; else null
  bool adds_last_bias_ = false;  // the norm before the half does not
};

}  // namespace neap::step
