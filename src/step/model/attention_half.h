// Attention of one transformer block, including the norms before and after it, for one batch of
// rows.
#pragma once

#include <utility>

#include "step/model/block_half.h"
#include "step/model/rotation.h"

namespace neap::step {

template <class Ops>
class AttentionHalf : public BlockHalf<Ops> {
  using Base = BlockHalf<Ops>;
  using Base::a_, Base::adds_in_place, Base::adds_last_bias_, Base::behind_backward, Base::drops,
      Base::finish_part, Base::last_product, Base::later_, Base::matrix_backward, Base::norm_before,
      Base::norm_behind, Base::normalizes_within, Base::ops_, Base::pass_, Base::rows_, Base::s_,
      Base::w_;
  using typename Base::Saved;
  using typename Base::T;

 public:
  using Base::Base;

  /// The residual stream after attention, (N, C), from the saved input. `attend(heads)` takes the
  /// rotated heads and returns an AttentionContext.
  template <class Attend>
  T forward(const Attend& attend) {
    make_operands();
    run_attention(attend);
    return make_stream();
  }
  T forward() {
    return forward([this](Heads<T> heads) { return attend(std::move(heads)); });
  }

  /// Gradient of the block's input through attention and the residual stream; `d` as in
  /// MlpHalf::backward.
  T backward(T& d) {
    if (norm_behind()) make_attention_after();
    T dy = tokens_of_all(
        ops_, rows_,
        behind_backward(w_.attention_after_norm, s_.attention_result, s_.attention_after, d));
    make_attention_out();
    T d_out = matrix_backward(w_.attention_out, s_.attention.out, dy);
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
                                   std::exchange(s_.key_norm, {}), heads.k, later_);
      heads.q = head_norm_backward(ops_, a_, w_.query_norm, std::move(s_.query),
                                   std::exchange(s_.query_norm, {}), heads.q, later_);
    }
    make_attention_input();
    T dx = project_heads_backward(ops_, a_, w_, tokens_of_all(ops_, rows_, s_.attention_input),
                                  std::move(heads), later_);
    dx = sum_of_parts(ops_, rows_, std::move(dx));
    s_.attention_input = T();
    if (a_.placement.before)
      return norm_backward(ops_, a_, w_.attention_norm, std::move(s_.input),
                           std::exchange(s_.attention_norm, {}), dx, later_, d);
    ops_.add_(dx, d);
    return dx;
  }

  /// The residual stream after attention, from kept tensors.
  T make_stream() {
    if (!norm_behind()) return make_attention_sum();
    make_attention_result();
    T y = norm(ops_, a_, w_.attention_after_norm, s_.attention_result, &s_.attention_after);
    if (drops(Saved::kAttentionResult)) s_.attention_result = T();
    if (a_.placement.after) ops_.add_(y, s_.input);
    return y;
  }

 private:
  void make_attention_input() {
    if (s_.attention_input.defined()) return;
    s_.attention_input = a_.placement.before ? norm_before(w_.attention_norm, s_.input,
                                                           s_.attention_norm, w_.attention_out)
                                             : s_.input;
  }

  Heads<T> project(bool query_key, bool value) {
    make_attention_input();
    Heads<T> heads = project_heads(ops_, a_, w_, tokens_of_all(ops_, rows_, s_.attention_input),
                                   query_key, value);
    drop_attention_input();
    return heads;
  }
  Heads<T> project_joined() {
    make_attention_input();
    Heads<T> heads = project_joined_heads(ops_, a_, w_, s_.attention_input);
    drop_attention_input();
    return heads;
  }
  void drop_attention_input() {
    if (!drops(Saved::kAttentionInput)) return;
    s_.attention_input = T();
    s_.attention_norm = {};
  }

  T rotate(const T& x, bool inverse) {
    const bool sliding = rotates_as_sliding(a_, w_.index);
    return ops_.rotate(x, sliding ? rows_.sliding_cos : rows_.cos,
                       sliding ? rows_.sliding_sin : rows_.sin, inverse);
  }

  // Whether the kernel that projects the heads computes the norm before it.
  [[nodiscard]] bool normalizes_heads() const {
    const std::int64_t out = a_.query_width() + 2 * a_.key_value_width();
    return (!a_.query_key_norm || norms_new_heads(a_)) && heads_of_few_rows(ops_, w_, s_.input) &&
           normalizes_within(s_.input, out, w_.attention_out);
  }

  // Recomputes q and k before their norms.
  void make_projected_query_key() {
    if (s_.query.defined()) return;
    Heads<T> heads = project(/*query_key=*/true, /*value=*/false);
    s_.query = std::move(heads.q);
    s_.key = std::move(heads.k);
  }

  // Recomputes those of q, k and v that are missing, in the form that attention reads.
  void make_operands() {
    Heads<T>& heads = s_.attention.heads;
    if (rows_.fused) {
      if (normalizes_heads()) {
        adds_last_bias_ = true;
        heads = with_norms(
            project_joined_heads(ops_, a_, w_, s_.input, rows_norm(a_, w_.attention_norm)), a_, w_);
        return;
      }
      make_attention_input();
      if (joins_heads(ops_, a_, w_, s_.attention_input)) {
        heads = with_norms(project_joined(), a_, w_);
        return;
      }
    }
    Heads<T> projected{s_.query, s_.key, {}};
    const bool query_key = !heads.q.defined();
    if (const bool value = !heads.v.defined(); value || (query_key && !projected.q.defined())) {
      projected = project(query_key && !projected.q.defined(), value);
      if (value) heads.v = std::move(projected.v);
      if (s_.query.defined()) projected = {s_.query, s_.key, {}};
    }
    if (!query_key) return;
    if (rows_.fused && norms_new_heads(a_)) {
      heads = with_norms<T>({std::move(projected.q), std::move(projected.k), heads.v}, a_, w_);
    } else if (a_.query_key_norm) {
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
    if (rows_.fused || !a_.rotates(w_.index)) return;
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

  // Projects attention's output; adds it to `sum` if that is defined.
  T project_out(T sum = {}) {
    make_attention_out();
    if (!drops(Saved::kAttentionOut))
      return linear(ops_, w_.attention_out, s_.attention.out, std::move(sum));
    const T out = std::move(s_.attention.out);
    Heads<T> heads = std::move(s_.attention.heads);
    s_.attention = {};
    s_.attention.heads = std::move(heads);
    return last_product(w_.attention_out, out, std::move(sum));
  }

  // Attention's projected output. The block's input is added if the norm reads the sum or without a
  // norm.
  T make_attention_sum() {
    if (adds_in_place(w_.attention_out)) return project_out(std::exchange(s_.input, {}));
    T y = finish_part(project_out());
    if (!a_.placement.after) ops_.add_(y, s_.input);
    return y;
  }
  void make_attention_result() {
    if (!s_.attention_result.defined()) s_.attention_result = make_attention_sum();
  }
  // Recomputes what the backward of the norm after attention reads. The norm's result may have been
  // kept as the MLP's input without the norm's statistics.
  void make_attention_after() {
    make_attention_result();
    if (!s_.attention_after.rstd.defined())
      (void)norm(ops_, a_, w_.attention_after_norm, s_.attention_result, &s_.attention_after);
  }
};

}  // namespace neap::step
