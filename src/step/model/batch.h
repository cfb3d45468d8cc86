// Batches of sequences on the host, padded or packed, and a part of one on the device.
//
// B sequences of W columns; R response tokens each.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "step/model/packing.h"
#include "step/model/transformer.h"

namespace neap::step {

/// The sequences of a batch without padding, one after another, in the order of their
/// micro-batches. With context parallelism (spec/ranks/context_parallel.h) it has this rank's rows, some
/// of which are padding, and its part of responses and last tokens.
template <class T>
struct Packed {
  T tokens, positions;  // (N,) int64
  // (M,) int64, for the response tokens in the mask: the row whose output predicts the token, the
  // token, and its position in B x R. Rows and positions are relative to the micro-batch.
  T rows, targets, places;
  T last;  // (L,) int64: row of the last token, within its micro-batch; L = B, or this rank's part
  std::vector<std::int64_t> lengths;  ///< (B,): tokens of each sequence
  std::vector<std::int64_t> starts;   ///< (B + 1,): first row of each sequence, then N
  std::vector<std::int64_t> counts;   ///< (B + 1,): the same for M
  Cuts cuts;                          ///< the micro-batches
  // With context parallelism:
  spec::ContextShard context{};
  T last_places{};  // (L,) int64: the sequence of each, within its micro-batch
  std::vector<std::int64_t> last_counts{};  ///< (B + 1,): as counts, for L
  std::int64_t width = 0;                   ///< W, if there are no padded tokens
};

/// Prompts with their responses as one padded batch, and also without padding if `packed` is set.
/// Then only tokens, columns and targets of the padded form may be set. On the host they may be
/// int32; Ops::to_device converts them.
template <class T>
struct Sequences {
  T tokens;   // (B, W) int64
  T columns;  // (B, R) int64: column whose output predicts the response token
  T targets;  // (B, R) int64: that token; pad after the response
  T mask;     // (B, R) float32: 1 for response tokens
  T last;     // (B,) int64: column of the last token
  T lengths;  // (B,) int64: tokens
  std::optional<Packed<T>> packed{};

  [[nodiscard]] std::int64_t size() const { return mask.size(0); }
  [[nodiscard]] std::int64_t width() const {
    return tokens.defined() ? tokens.size(1) : packed->width;
  }
};

/// Inputs of phases in addition to their sequences, on the host: (B, R) except the last two.
/// Tensors that a body does not read may be undefined.
template <class T>
struct Experience {
  Sequences<T> sequences;
  T old_log_probs, ref_log_probs, values, advantages, returns;
  T rollout_weights;  // for the policy's loss
  T noise;            // for losses that sample tokens
  T margins;          // (P,) for pairs
  T reference_sums;   // (B,) log-probabilities of whole responses under the reference
};

/// Rows of hidden states of sequences [first, first + count).
template <class T>
std::int64_t rows_of(const Sequences<T>& all, std::int64_t first, std::int64_t count) {
  if (!all.packed) return count * all.width();
  const std::vector<std::int64_t>& starts = all.packed->starts;
  return starts[static_cast<std::size_t>(first + count)] - starts[static_cast<std::size_t>(first)];
}

/// Rows [first, first + count) of `t`, on the device.
template <class Ops, class T = typename Ops::Tensor>
T part_on_device(Ops& ops, const T& t, std::int64_t first, std::int64_t count) {
  return t.defined() ? ops.to_device(ops.narrow(t, 0, first, count)) : T();
}

/// The type in which losses of a model with these weights are computed.
template <class Ops, class T = typename Ops::Tensor>
[[nodiscard]] Dtype loss_dtype(Ops& ops, const Weights<T>& w) {
  return wide(ops.dtype(any_weight(w)));
}

/// Sequences [first, first + count) of a batch on the device; for a packed batch, a micro-batch.
/// `numbers` is loss_dtype().
template <class Ops>
class DeviceBatch {
  using T = typename Ops::Tensor;

 public:
  DeviceBatch(Ops& ops, const Sequences<T>& all, std::int64_t first, std::int64_t count,
              Dtype numbers)
      : ops_(ops), all_(all), first_(first), count_(count), numbers_(numbers) {
    if (all.packed) {
      const Packed<T>& p = *all.packed;
      tokens_ = span(p.tokens, p.starts);
      positions_ = span(p.positions, p.starts);
      columns_ = span(p.rows, p.counts);
      targets_ = span(p.targets, p.counts);
      places_ = span(p.places, p.counts);
    } else {
      tokens_ = rows(all.tokens);
      columns_ = rows(all.columns);
      targets_ = rows(all.targets);
    }
    mask_ = part(all.mask);
    if (!divided()) {
      last_ = rows(all.packed ? all.packed->last : all.last);
      return;
    }
    last_ = span(all.packed->last, all.packed->last_counts);
    last_places_ = span(all.packed->last_places, all.packed->last_counts);
  }

  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t size() const { return count_; }
  [[nodiscard]] const T& mask() const { return mask_; }  // (B, R)
  /// The batch's rows of a host tensor of numbers.
  [[nodiscard]] T part(const T& t) const { return part(t, first_, count_); }
  /// Other rows of such a tensor.
  [[nodiscard]] T part(const T& t, std::int64_t first, std::int64_t count) const {
    return t.defined() ? ops_.convert(part_on_device(ops_, t, first, count), numbers_) : T();
  }

  [[nodiscard]] BatchTokens<T> tokens() const {
    if (!all_.packed) return of_one_length(ops_.view(tokens_, {-1}), all_.width());
    Spans<T> spans{count_, all_.width()};
    const auto from = all_.packed->lengths.begin() + first_;
    spans.lengths.assign(from, from + count_);
    spans.context = all_.packed->context;
    if (!spans.divided()) spans.starts = ops_.starts_of(spans.lengths);
    return {tokens_, std::move(spans), positions_};
  }
  /// Rows whose outputs predict response tokens: (M,). If padded, M = B * R.
  [[nodiscard]] T response_rows() const {
    if (all_.packed) return columns_;
    const T first = ops_.iota(count_, all_.width());
    return ops_.view(ops_.add(columns_, ops_.view(first, {-1, 1})), {-1});
  }
  /// The response tokens: (M,).
  [[nodiscard]] T targets() const { return ops_.view(targets_, {-1}); }
  /// x (M,) by sequence, (B, R), from all context-parallel ranks. 0 outside the mask.
  [[nodiscard]] T by_sequence(const T& x) const {
    if (!all_.packed) return ops_.view(x, {count_, -1});
    const T out = ops_.zeros({count_ * response(), 1}, ops_.dtype(x));
    ops_.add_to_rows_(out, places_, ops_.view(x, {-1, 1}));
    ops_.sum_over_(out, spec::Axis::kContext);
    return ops_.view(out, {count_, response()});
  }
  /// x (B, R) at the response rows: (M,).
  [[nodiscard]] T by_row(const T& x) const {
    if (!x.defined()) return T();
    if (!all_.packed) return ops_.view(x, {-1});
    return ops_.view(ops_.take_rows(ops_.view(x, {-1, 1}), places_), {-1});
  }
  /// Rows of the last tokens: (L,). L is B, or this rank's number of them.
  [[nodiscard]] T last_token_rows() const {
    if (all_.packed) return last_;
    return ops_.add(last_, ops_.iota(count_, all_.width()));
  }
  /// x (L,) at the last tokens, by sequence (B,), from all context-parallel ranks.
  [[nodiscard]] T last_by_sequence(const T& x) const {
    if (!divided()) return x;
    const T out = ops_.zeros({count_, 1}, ops_.dtype(x));
    ops_.add_to_rows_(out, last_places_, ops_.view(x, {-1, 1}));
    ops_.sum_over_(out, spec::Axis::kContext);
    return ops_.view(out, {count_});
  }
  /// The inverse: x (B,) at this rank's last tokens, (L,).
  [[nodiscard]] T last_by_row(const T& x) const {
    if (!divided()) return x;
    return ops_.view(ops_.take_rows(ops_.view(x, {-1, 1}), last_places_), {-1});
  }

 private:
  [[nodiscard]] T rows(const T& t) const { return part_on_device(ops_, t, first_, count_); }
  [[nodiscard]] bool divided() const { return all_.packed && all_.packed->context.ranks > 1; }
  [[nodiscard]] std::int64_t response() const { return all_.mask.size(1); }
  [[nodiscard]] T span(const T& t, const std::vector<std::int64_t>& starts) const {
    const std::int64_t from = starts[static_cast<std::size_t>(first_)];
    return part_on_device(ops_, t, from, starts[static_cast<std::size_t>(first_ + count_)] - from);
  }

  Ops& ops_;
  const Sequences<T>& all_;
  std::int64_t first_, count_;
  Dtype numbers_;
  T tokens_, positions_, columns_, targets_, places_, mask_, last_, last_places_;
};

}  // namespace neap::step
