// One transformer block at work on one batch of rows.
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
class BlockPass {
  using T = typename Ops::Tensor;
  using Saved = spec::SavedTensor;

 public:
  BlockPass(Ops& ops, const spec::Architecture& a, const Block<T>& w, const Rows<T>& rows,
            SavedBlock<T>& saved, Pass pass)
      : ops_(ops), a_(a), w_(w), rows_(rows), s_(saved), pass_(pass) {}

  /// The residual stream behind attention, (N, C), from the saved input. `attend(heads)` takes the
  /// rotated heads and gives an AttentionContext.
  template <class Attend>
  T attention_half(const Attend& attend) {
    make_operands();
    run_attention(attend);
    return make_stream();
  }
  T attention_half() {
    return attention_half([this](Heads<T> heads) { return attend(std::move(heads)); });
  }

  /// The block's result (N, C) from what the MLP reads and the residual stream.
  T mlp_half(T read, T residual) {
    (a_.parallel_residual ? s_.input : s_.middle) = std::move(read);
    make_mlp_input();
    if (drops(Saved::kMiddle) && !a_.parallel_residual) {
      s_.middle = T();
      s_.attention_after = {};
    }
    if (pass_ == Pass::kInference) s_.input = T();
    if (a_.gated) make_gate();
    make_up();
    mlp_read_ = T();
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

  /// Gradient of what the MLP read. `d`, of the block's result, becomes that of the residual stream.
  T mlp_backward(T& d) {
    if (norm_behind()) make_mlp_result();
    T dy = rows_of_all(ops_, rows_,
                       behind_backward(w_.mlp_after_norm, s_.mlp_result, s_.mlp_after, d));
    T dx = a_.fused_gate ? fused_gated_backward(std::move(dy))
           : a_.gated    ? gated_backward(std::move(dy))
                         : plain_backward(std::move(dy));
    dx = sum_of_parts(ops_, rows_, std::move(dx));
    if (a_.placement.before)
      dx = norm_backward(ops_, a_, w_.mlp_norm, mlp_reads(), std::exchange(s_.mlp_norm, {}), dx);
    s_.middle = T();
    return dx;
  }

  /// Gradient of the block's input through attention; `d` as in mlp_backward.
  T attention_backward(T& d) {
    if (norm_behind()) make_attention_after();
    T dy = tokens_of_all(
        ops_, rows_,
        behind_backward(w_.attention_after_norm, s_.attention_result, s_.attention_after, d));
    make_attention_out();
    T d_out = linear_backward(ops_, w_.attention_out, s_.attention.out, dy);
    dy = T();
    make_operands();
    Heads<T> heads = ops_.attention_backward(std::exchange(s_.attention, {}), std::move(d_out));
    if (a_.rotates(w_.index)) {
      heads.k = rotate(heads.k, /*inverse=*/true);
      heads.q = rotate(heads.q, /*inverse=*/true);
    }
    if (a_.query_key_norm) {
      make_projected_query_key();
      heads.k = head_norm_backward(ops_, a_, w_.key_norm, std::move(s_.key),
                                   std::exchange(s_.key_norm, {}), heads.k);
      heads.q = head_norm_backward(ops_, a_, w_.query_norm, std::move(s_.query),
                                   std::exchange(s_.query_norm, {}), heads.q);
    }
    make_attention_input();
    T dx = project_heads_backward(ops_, a_, w_, tokens_of_all(ops_, rows_, s_.attention_input),
                                  std::move(heads));
    dx = sum_of_parts(ops_, rows_, std::move(dx));
    s_.attention_input = T();
    if (!a_.placement.before) return dx;
    return norm_backward(ops_, a_, w_.attention_norm, std::move(s_.input),
                         std::exchange(s_.attention_norm, {}), dx);
  }

 private:
  [[nodiscard]] bool drops(Saved t) const {
    return pass_ != Pass::kBackward && !s_.retention.keeps(t);
  }
  [[nodiscard]] bool norm_behind() const { return a_.placement.after || a_.placement.over; }

  // ---- attention ----

  void make_attention_input() {
    if (s_.attention_input.defined()) return;
    s_.attention_input = a_.placement.before
                             ? norm(ops_, a_, w_.attention_norm, s_.input, &s_.attention_norm)
                             : s_.input;
  }

  Heads<T> project(bool query_key, bool value) {
    make_attention_input();
    Heads<T> heads = project_heads(ops_, a_, w_, tokens_of_all(ops_, rows_, s_.attention_input),
                                   query_key, value);
    if (drops(Saved::kAttentionInput)) {
      s_.attention_input = T();
      s_.attention_norm = {};
    }
    return heads;
  }

  T rotate(const T& x, bool inverse) {
    const bool sliding = rows_.sliding_cos.defined() && a_.window_of(w_.index) > 0;
    return ops_.rotate(x, sliding ? rows_.sliding_cos : rows_.cos,
                       sliding ? rows_.sliding_sin : rows_.sin, inverse);
  }

  // q and k before their norms.
  void make_projected_query_key() {
    if (s_.query.defined()) return;
    Heads<T> heads = project(/*query_key=*/true, /*value=*/false);
    s_.query = std::move(heads.q);
    s_.key = std::move(heads.k);
  }

  // Those of q, k and v that are missing, as attention reads them.
  void make_operands() {
    Heads<T>& heads = s_.attention.heads;
    Heads<T> projected{s_.query, s_.key, {}};
    const bool query_key = !heads.q.defined();
    if (const bool value = !heads.v.defined(); value || (query_key && !projected.q.defined())) {
      projected = project(query_key && !projected.q.defined(), value);
      if (value) heads.v = std::move(projected.v);
      if (s_.query.defined()) projected = {s_.query, s_.key, {}};
    }
    if (!query_key) return;
    if (a_.query_key_norm) {
      s_.query = std::move(projected.q);
      s_.key = std::move(projected.k);
      heads.q = head_norm(ops_, a_, w_.query_norm, s_.query, &s_.query_norm);
      heads.k = head_norm(ops_, a_, w_.key_norm, s_.key, &s_.key_norm);
      if (drops(Saved::kProjections)) {
        s_.query = T();
        s_.key = T();
      }
    } else {
      heads.q = std::move(projected.q);
      heads.k = std::move(projected.k);
    }
    if (!a_.rotates(w_.index)) return;
    heads.q = rotate(heads.q, /*inverse=*/false);
    heads.k = rotate(heads.k, /*inverse=*/false);
  }

  AttentionContext<T> attend(Heads<T> heads) {
    return ops_.attention(std::move(heads), rows_.spans, score_options(a_, w_.index));
  }
  template <class Attend>
  void run_attention(const Attend& attend) {
    s_.attention = attend(std::exchange(s_.attention.heads, {}));
    Heads<T>& heads = s_.attention.heads;
    if (drops(Saved::kProjections)) heads.v = T();
    if (drops(Saved::kQueryKey)) {
      heads.q = T();
      heads.k = T();
      s_.query_norm = {};
      s_.key_norm = {};
    }
  }
  void make_attention_out() {
    if (s_.attention.out.defined()) return;
    make_operands();
    run_attention([this](Heads<T> heads) { return attend(std::move(heads)); });
  }

  // Attention's output, projected.
  T project_out() {
    make_attention_out();
    if (!drops(Saved::kAttentionOut)) return linear(ops_, w_.attention_out, s_.attention.out);
    const T out = std::move(s_.attention.out);
    Heads<T> heads = std::move(s_.attention.heads);
    s_.attention = {};
    s_.attention.heads = std::move(heads);
    return linear(ops_, w_.attention_out, out);
  }

  // From this rank's part of a half's last product to what the half adds to the residual stream.
  T finish_part(T part) {
    T y = sum_of_parts(ops_, rows_, std::move(part));
    scale_part(y);
    return y;
  }
  void scale_part(const T& y) {
    if (a_.residual_scale != 1) ops_.scale_(y, a_.residual_scale);
  }

  // Attention's projected output, with the block's input where the norm reads their sum or where
  // there is none.
  T make_attention_sum() {
    T y = finish_part(project_out());
    if (!a_.placement.after) ops_.add_(y, s_.input);
    return y;
  }
  void make_attention_result() {
    if (!s_.attention_result.defined()) s_.attention_result = make_attention_sum();
  }
  // What the backward of the norm behind attention reads. The stream that the norm makes may have
  // been kept under another name, the MLP's input, and the statistics not.
  void make_attention_after() {
    make_attention_result();
    if (!s_.attention_after.rstd.defined())
      (void)norm(ops_, a_, w_.attention_after_norm, s_.attention_result, &s_.attention_after);
  }
  // The residual stream behind attention.
  T make_stream() {
    if (!norm_behind()) return make_attention_sum();
    make_attention_result();
    T y = norm(ops_, a_, w_.attention_after_norm, s_.attention_result, &s_.attention_after);
    if (drops(Saved::kAttentionResult)) s_.attention_result = T();
    if (a_.placement.after) ops_.add_(y, s_.input);
    return y;
  }

  // ---- MLP ----

  // What the norm before the MLP reads.
  const T& mlp_reads() {
    if (a_.parallel_residual) return s_.input;
    if (!s_.middle.defined()) s_.middle = make_stream();
    return s_.middle;
  }
  void make_mlp_input() {
    if (s_.mlp_input.defined()) return;
    const T& read = mlp_reads();
    s_.mlp_input = a_.placement.before ? norm(ops_, a_, w_.mlp_norm, read, &s_.mlp_norm) : read;
  }
  // The MLP's input as its products read it.
  const T& make_mlp_read() {
    make_mlp_input();
    if (!mlp_read_.defined()) mlp_read_ = rows_of_all(ops_, rows_, s_.mlp_input);
    return mlp_read_;
  }
  void drop_mlp_input() {
    mlp_read_ = T();
    s_.mlp_input = T();
  }
  void make_gate() {
    if (s_.gate.defined()) return;
    if (a_.fused_gate) return make_gate_up();
    s_.gate = linear(ops_, w_.gate, make_mlp_read());
  }
  void make_up() {
    if (s_.up.defined()) return;
    if (a_.fused_gate) return make_gate_up();
    s_.up = linear(ops_, w_.up, make_mlp_read());
  }
  // Both halves of one product (N, 2 F), or the one that is missing.
  void make_gate_up() {
    const T both = linear(ops_, w_.gate_up, make_mlp_read());
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
  void make_product() {
    if (s_.product.defined()) return;
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

  // The MLP's projected output, with the residual as in make_attention_sum, which consumes it.
  T make_mlp_sum(T& residual) {
    T y;
    if (a_.gated) {
      make_product();
      y = linear(ops_, w_.down, s_.product);
      if (drops(Saved::kProduct)) s_.product = T();
    } else {
      make_activated();
      y = linear(ops_, w_.down, s_.activated);
      if (drops(Saved::kActivated)) s_.activated = T();
    }
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

  // ---- backward ----

  // Through the norm behind a half: `d`, of the norm's result, becomes that of the residual stream.
  T behind_backward(const Norm<T>& p, T& read, NormStatistics<T>& statistics, T& d) {
    if (!norm_behind()) return part_gradient(d);
    T dy = norm_backward(ops_, a_, p, std::exchange(read, {}), std::exchange(statistics, {}), d);
    if (a_.placement.over) d = dy;
    return dy;
  }

  // That of a half's result from `d`, which the residual stream needs too.
  T part_gradient(const T& d) {
    if (a_.residual_scale == 1) return d;
    T dy = ops_.clone(d);
    scale_part(dy);
    return dy;
  }

  T plain_backward(T dy) {
    make_activated();
    T d = linear_backward(ops_, w_.down, s_.activated, dy);
    dy = T();
    s_.activated = T();
    make_up();
    d = ops_.activate_backward(d, s_.up, a_.activation);
    s_.up = T();
    T dx = linear_backward(ops_, w_.up, make_mlp_read(), d);
    drop_mlp_input();
    return dx;
  }

  T gated_backward(T dy) {
    make_product();
    T d = linear_backward(ops_, w_.down, s_.product, dy);
    dy = T();
    make_activated();
    make_up();
    ops_.multiply_into(s_.product, d, s_.activated);  // its memory becomes d_up
    T d_up = std::move(s_.product);
    s_.activated = T();
    ops_.multiply_(d, s_.up);
    s_.up = T();
    make_gate();
    const T d_gate = ops_.activate_backward(d, s_.gate, a_.activation);
    d = T();
    s_.gate = T();
    T dx = linear_backward(ops_, w_.up, make_mlp_read(), d_up);
    d_up = T();
    dx = linear_backward(ops_, w_.gate, make_mlp_read(), d_gate, std::move(dx));
    drop_mlp_input();
    return dx;
  }

  T fused_gated_backward(T dy) {
    make_product();
    const T d = linear_backward(ops_, w_.down, s_.product, dy);
    dy = T();
    s_.product = T();
    make_activated();
    make_up();
    make_gate();
    const T d_both = ops_.empty({d.size(0), 2 * a_.intermediate_size}, ops_.dtype(d));
    ops_.multiply_into(half(d_both, 1), d, s_.activated);
    s_.activated = T();
    ops_.multiply_(d, s_.up);
    ops_.copy_(half(d_both, 0), ops_.activate_backward(d, s_.gate, a_.activation));
    s_.up = T();
    s_.gate = T();
    T dx = linear_backward(ops_, w_.gate_up, make_mlp_read(), d_both);
    drop_mlp_input();
    return dx;
  }

  Ops& ops_;
  const spec::Architecture& a_;
  const Block<T>& w_;
  const Rows<T>& rows_;
  SavedBlock<T>& s_;
  Pass pass_;
  T mlp_read_;  // (ranks n, C): the MLP's input of all ranks, from its first reader to its last
};

}  // namespace neap::step
