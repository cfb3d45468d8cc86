// The MLP of one transformer block, including the norms before and after it, for one batch of rows.
#pragma once

#include <utility>

#include "kernels/decoding_sizes.h"
#include "step/model/attention_half.h"

namespace neap::step {

template <class Ops>
class MlpHalf : public BlockHalf<Ops> {
  using Base = BlockHalf<Ops>;
  using Base::a_, Base::adds_in_place, Base::adds_last_bias_, Base::behind_backward, Base::drops,
      Base::finish_part, Base::last_product, Base::later_, Base::matrix_backward, Base::norm_before,
      Base::norm_behind, Base::normalizes_within, Base::ops_, Base::pass_, Base::rows_, Base::s_,
      Base::w_;
  using typename Base::Saved;
  using typename Base::T;

 public:
  /// For the same block and rows as `attention`, which recomputes the MLP's input if it was not
  /// kept.
  explicit MlpHalf(AttentionHalf<Ops>& attention) : Base(attention), attention_(attention) {}

  /// The block's result (N, C), from the MLP's input and the residual stream.
  T forward(T read, T residual) {
    (a_.parallel_residual ? s_.input : s_.middle) = std::move(read);
    adds_last_bias_ = normalizes_product();
    if (adds_last_bias_) {
      s_.mlp_input = mlp_reads();  // The product's kernel normalizes it.
    } else {
      make_mlp_input();
    }
    if (drops(Saved::kMiddle) && !a_.parallel_residual) {
      s_.middle = T();
      s_.attention_after = {};
    }
    if (pass_ == Pass::kInference) s_.input = T();
    if (rows_.fused) make_product_of_few_rows();
    if (!s_.product.defined() && !s_.activated.defined()) {
      if (a_.gated) make_gate();
      make_up();
    }
    mlp_read_ = T();
    copies_ = {};
    if (drops(Saved::kMlpInput)) {
      s_.mlp_input = T();
      s_.mlp_norm = {};
    }
    T y = make_mlp_sum(residual);
    if (!norm_behind()) return y;
    s_.mlp_result = y;
    y = norm(ops_, a_, w_.mlp_after_norm, s_.mlp_result, &s_.mlp_after);
    if (drops(Saved::kMlpResult)) {
      s_.mlp_result = T();
      s_.mlp_after = {};
    }
    if (a_.placement.after) ops_.add_(y, residual);
    return y;
  }

  /// Gradient of the MLP's input. `d`, the gradient of the block's result, becomes that of the
  /// residual stream. It is added unless both halves read the block's input.
  T backward(T& d) {
    if (norm_behind()) make_mlp_result();
    T dy = rows_of_all(ops_, rows_,
                       behind_backward(w_.mlp_after_norm, s_.mlp_result, s_.mlp_after, d));
    T dx = a_.fused_gate ? fused_gated_backward(std::move(dy))
           : a_.gated    ? gated_backward(std::move(dy))
                         : plain_backward(std::move(dy));
    dx = sum_of_parts(ops_, rows_, std::move(dx));
    const T stream = a_.parallel_residual ? T() : d;
    if (a_.placement.before) {
      dx = norm_backward(ops_, a_, w_.mlp_norm, mlp_reads(), std::exchange(s_.mlp_norm, {}), dx,
                         later_, stream);
    } else if (stream.defined()) {
      ops_.add_(dx, stream);
    }
    s_.middle = T();
    return dx;
  }

 private:
  // The input of the norm before the MLP.
  const T& mlp_reads() {
    if (a_.parallel_residual) return s_.input;
    if (!s_.middle.defined()) s_.middle = attention_.make_stream();
    return s_.middle;
  }
  void make_mlp_input() {
    if (s_.mlp_input.defined()) return;
    const T& read = mlp_reads();
    s_.mlp_input =
        a_.placement.before ? norm_before(w_.mlp_norm, read, s_.mlp_norm, w_.down) : read;
  }
  // The MLP's input in the form that its products read.
  const T& make_mlp_read() {
    make_mlp_input();
    if (!mlp_read_.defined()) mlp_read_ = rows_of_all(ops_, rows_, s_.mlp_input);
    return mlp_read_;
  }
  void drop_mlp_input() {
    mlp_read_ = T();
    copies_ = {};
    s_.mlp_input = T();
  }
  void make_gate() {
    if (s_.gate.defined()) return;
    if (joins_gate()) return make_gate_up();
    s_.gate = linear(ops_, w_.gate, make_mlp_read(), T(), &copies_);
  }
  void make_up() {
    if (s_.up.defined()) return;
    if (joins_gate()) return make_gate_up();
    s_.up = linear(ops_, w_.up, make_mlp_read(), T(), &copies_);
  }
  // Whether one product computes gate and up.
  [[nodiscard]] bool joins_gate() const {
    if (a_.fused_gate) return true;
    return rows_.fused && w_.gate_and_up.defined() && !w_.gate.has_lora() && !w_.up.has_lora();
  }
  // Recomputes both halves of one product (N, 2 F), or the missing one.
  void make_gate_up() {
    const T both =
        linear(ops_, a_.fused_gate ? w_.gate_up : w_.gate_and_up, make_mlp_read(), T(), &copies_);
    if (!s_.gate.defined()) s_.gate = half(both, 0);
    if (!s_.up.defined()) s_.up = half(both, 1);
  }
  T half(const T& both, std::int64_t which) {
    return ops_.narrow(both, 1, which * a_.intermediate_size, a_.intermediate_size);
  }
  void make_activated() {
    if (s_.activated.defined()) return;
    if (a_.gated) {
      make_gate();
    } else {
      make_up();
    }
    T& from = a_.gated ? s_.gate : s_.up;
    if (drops(a_.gated ? Saved::kGate : Saved::kUp)) {
      ops_.activate_(from, a_.activation);
      s_.activated = std::move(from);
    } else {
      s_.activated = ops_.activate(from, a_.activation);
    }
  }
  // Whether one kernel computes the last matrix's input from the MLP's input x, in decoding.
  [[nodiscard]] bool takes_product(const T& x) const {
    if (!a_.gated) return takes_few_rows(ops_, {&w_.up}, x);
    if (a_.fused_gate)
      return !w_.gate_up.bias.defined() && a_.intermediate_size % kernels::decoding::kTile == 0 &&
             takes_few_rows(ops_, {&w_.gate_up}, x);
    return !w_.gate.bias.defined() && !w_.up.bias.defined() &&
           takes_few_rows(ops_, {&w_.gate, &w_.up}, x);
  }
  // Whether that kernel also computes the norm before the MLP.
  [[nodiscard]] bool normalizes_product() {
    if (!rows_.fused) return false;
    const T& x = mlp_reads();
    return takes_product(x) &&
           normalizes_within(x, (a_.gated ? 2 : 1) * a_.intermediate_size, w_.down);
  }
  // In decoding, computes the last matrix's input with one kernel, if there is one.
  void make_product_of_few_rows() {
    const T& x = make_mlp_read();
    if (takes_product(x)) {
      FewMatrices<T> by;
      if (adds_last_bias_) by.norm = rows_norm(a_, w_.mlp_norm);
      if (!a_.gated) {
        by.weight[0] = w_.up.weight;
        by.bias[0] = w_.up.bias;
        s_.activated = ops_.few_rows_activated(x, by, a_.activation);
        return;
      }
      by.weight[0] = a_.fused_gate ? half_of(w_.gate_up.weight, 0) : w_.gate.weight;
      by.weight[1] = a_.fused_gate ? half_of(w_.gate_up.weight, 1) : w_.up.weight;
      s_.product = ops_.few_rows_gated(x, by, a_.activation);
    } else if (takes_adapted_rows(ops_, {&w_.gate, &w_.up}, x)) {
      const AdaptedRows<T> rows = adapted_rows(ops_, {&w_.gate, &w_.up}, x);
      s_.product = ops_.gate_adapted_rows(rows.y, rows.by, a_.activation);
    }
  }
  T half_of(const T& matrix, std::int64_t which) {
    return ops_.narrow(matrix, 0, which * a_.intermediate_size, a_.intermediate_size);
  }
  // Whether one kernel computes the product. Its backward does not read act(gate), so that is never kept.
  bool skips_activated() {
    if (s_.activated.defined()) return false;
    make_gate();
    return ops_.own_kernels(ops_.dtype(s_.gate));
  }
  void make_product_at_once() {
    make_up();
    if (drops(Saved::kGate)) {
      ops_.gate_into(s_.gate, s_.gate, s_.up, a_.activation);
      s_.product = std::move(s_.gate);
    } else {
      s_.product = ops_.empty({s_.gate.size(0), s_.gate.size(1)}, ops_.dtype(s_.gate));
      ops_.gate_into(s_.product, s_.gate, s_.up, a_.activation);
    }
    if (drops(Saved::kUp)) s_.up = T();
  }
  void make_product() {
    if (s_.product.defined()) return;
    if (skips_activated()) return make_product_at_once();
    make_activated();
    make_up();
    if (drops(Saved::kActivated)) {
      ops_.multiply_(s_.activated, s_.up);
      s_.product = std::move(s_.activated);
    } else {
      s_.product = ops_.multiply(s_.activated, s_.up);
    }
    if (drops(Saved::kUp)) s_.up = T();
  }

  // The MLP's projected output, with the residual as in make_attention_sum(), which is consumed.
  T make_mlp_sum(T& residual) {
    const bool in_place = adds_in_place(w_.down);
    T y = in_place ? std::exchange(residual, {}) : T();
    if (a_.gated) {
      make_product();
      y = last_product(w_.down, s_.product, std::move(y));
      if (drops(Saved::kProduct)) s_.product = T();
    } else {
      make_activated();
      y = last_product(w_.down, s_.activated, std::move(y));
      if (drops(Saved::kActivated)) s_.activated = T();
    }
    if (in_place) return y;
    y = finish_part(std::move(y));
    if (!a_.placement.after) ops_.add_(y, std::exchange(residual, {}));
    return y;
  }
  void make_mlp_result() {
    if (s_.mlp_result.defined()) return;
    T residual = mlp_reads();
    s_.mlp_result = make_mlp_sum(residual);
    (void)norm(ops_, a_, w_.mlp_after_norm, s_.mlp_result, &s_.mlp_after);
  }

  T plain_backward(T dy) {
    make_activated();
    T d = matrix_backward(w_.down, s_.activated, dy);
    dy = T();
    s_.activated = T();
    make_up();
    d = ops_.activate_backward(d, s_.up, a_.activation);
    s_.up = T();
    T dx = matrix_backward(w_.up, make_mlp_read(), d, T(), &copies_);
    drop_mlp_input();
    return dx;
  }

  T gated_backward(T dy) {
    make_product();
    T d = matrix_backward(w_.down, s_.product, dy);
    dy = T();
    T d_up = factors_backward(d);
    T dx = matrix_backward(w_.up, make_mlp_read(), d_up, T(), &copies_);
    d_up = T();
    dx = matrix_backward(w_.gate, make_mlp_read(), d, std::move(dx), &copies_);
    drop_mlp_input();
    return dx;
  }

  // Replaces d, the product's gradient, by the gate's. Returns that of the other factor.
  T factors_backward(T& d) {
    if (ops_.own_kernels(ops_.dtype(d))) {
      make_factors();
      T d_up = memory_of_d_up(d);
      ops_.gate_backward_into(d, d_up, d, s_.gate, s_.up, a_.activation);
      drop_factors();
      return d_up;
    }
    make_activated();
    make_up();
    T d_up = memory_of_d_up(d);
    ops_.multiply_into(d_up, d, s_.activated);
    s_.activated = T();
    ops_.multiply_(d, s_.up);
    s_.up = T();
    make_gate();
    d = ops_.activate_backward(d, s_.gate, a_.activation);
    s_.gate = T();
    return d_up;
  }
  // The product's memory, if nothing reads it any more.
  T memory_of_d_up(const T& d) {
    T product = std::exchange(s_.product, {});
    if (later_ == nullptr) return product;
    return ops_.empty({d.size(0), d.size(1)}, ops_.dtype(d));
  }
  void make_factors() {
    make_gate();
    make_up();
    s_.activated = T();
  }
  void drop_factors() {
    s_.gate = T();
    s_.up = T();
  }

  T fused_gated_backward(T dy) {
    make_product();
    const T d = matrix_backward(w_.down, s_.product, dy);
    dy = T();
    s_.product = T();
    const T d_both = both_factors_backward(d);
    T dx = matrix_backward(w_.gate_up, make_mlp_read(), d_both, T(), &copies_);
    drop_mlp_input();
    return dx;
  }
  // From d, the product's gradient, which it may overwrite.
  T both_factors_backward(const T& d) {
    const auto make_both = [&] {
      return ops_.empty({d.size(0), 2 * a_.intermediate_size}, ops_.dtype(d));
    };
    if (ops_.own_kernels(ops_.dtype(d))) {
      make_factors();
      T d_both = make_both();
      ops_.gate_backward_into(half(d_both, 0), half(d_both, 1), d, s_.gate, s_.up, a_.activation);
      drop_factors();
      return d_both;
    }
    make_activated();
    make_up();
    make_gate();
    T d_both = make_both();
    ops_.multiply_into(half(d_both, 1), d, s_.activated);
    s_.activated = T();
    ops_.multiply_(d, s_.up);
    ops_.copy_(half(d_both, 0), ops_.activate_backward(d, s_.gate, a_.activation));
    drop_factors();
    return d_both;
  }

  AttentionHalf<Ops>& attention_;
  T mlp_read_;           // (ranks n, C): the MLP's input of all ranks, while it is needed
  Fp8Copies<T> copies_;  // of that
};

}  // namespace neap::step
