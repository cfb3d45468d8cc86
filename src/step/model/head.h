// Heads: hidden states to log-probabilities or scores.
//
// Hidden states are (N, C) rows, of which R are read. Logits exist for one chunk of rows at a time.
#pragma once

#include <algorithm>
#include <utility>

#include "spec/recipe/recipe.h"
#include "step/model/head_rows.h"

namespace neap::step {

// ---- language model head ----

struct LogProbOptions {
  double temperature = 1;  ///< logits are divided by it
  bool entropy = false;
  bool accuracy = false;
  std::int64_t parts = 1;                            ///< in which a chunk's logits are reduced
  std::int64_t chunk_elements = spec::kLogitsChunk;  ///< rows are this / V, at least 1
};
template <class T>
struct LogProbs {
  T log_probs;  // (R,) wide: log p(target) at each row
  T entropy;    // (R,) wide; undefined unless requested
  // (R,) wide: 1 if no token is more likely than the target, else 0; undefined unless requested
  T right;
  T log_sum;  // (R,) wide: log sum exp of the row's logits; for backward
};

/// The divisor of capped logits.
template <class T>
double logits_divisor(const Weights<T>& w, double temperature) {
  return temperature * w.architecture.logits_divisor;
}

/// z (n, E) -> (n, V) wide, in new memory.
template <class Ops, class T = typename Ops::Tensor>
T scaled_logits(Ops& ops, const Weights<T>& w, const T& z, double temperature) {
  T logits = linear(ops, w.lm_head, z);
  if (w.architecture.logit_softcap > 0) ops.softcap_(logits, w.architecture.logit_softcap);
  logits = ops.convert(std::move(logits), wide(ops.dtype(z)));
  if (const double by = logits_divisor(w, temperature); by != 1) ops.scale_(logits, 1 / by);
  return logits;
}

/// Logits (n,) of the targets. Each rank of the axis has some columns.
template <class Ops, class T = typename Ops::Tensor>
T target_logits(Ops& ops, const T& logits, const T& targets, spec::Axis axis) {
  const OwnIndices<T> own = ops.own_indices(targets, logits.size(1), axis);
  T chosen = ops.gather_last(logits, own.indices);
  ops.clear_(chosen, own.foreign);
  ops.sum_over_(chosen, axis);
  return chosen;
}

/// Reads a chunk's logits (n, V), which are this rank's columns, and destroys them. Every member of
/// the result is (n,).
template <class Ops, class T = typename Ops::Tensor>
LogProbs<T> reduce_logits(Ops& ops, T logits, const T& targets, const LogProbOptions& options,
                          spec::Axis axis) {
  const T chosen = target_logits(ops, logits, targets, axis);  // (n,)
  const T top = ops.max_last(logits);                          // (n, 1)
  ops.max_over_(top, axis);
  LogProbs<T> out;
  if (options.accuracy) out.right = ops.at_least(chosen, ops.view(top, {-1}));
  ops.subtract_(logits, top);
  T weighted;
  T log_sum;  // relative to top
  if (options.entropy) {
    const T e = ops.exp(logits);
    log_sum = ops.sum_last(e);
    ops.sum_over_(log_sum, axis);
    ops.multiply_(e, logits);
    weighted = ops.sum_last(e);
    ops.sum_over_(weighted, axis);
    ops.divide_(weighted, log_sum);  // E[logit - top]
  } else {
    ops.exp_(logits);
    log_sum = ops.sum_last(logits);
    ops.sum_over_(log_sum, axis);
  }
  ops.log_(log_sum);
  if (options.entropy) out.entropy = ops.subtract(log_sum, weighted);
  out.log_sum = ops.add(log_sum, ops.view(top, {-1}));
  out.log_probs = ops.subtract(chosen, out.log_sum);
  return out;
}

/// d loss / d logits, written to the logits' memory. Rows of the other arguments are (n,). entropy
/// and d_entropy may be undefined.
template <class Ops, class T = typename Ops::Tensor>
T logits_gradient(Ops& ops, const Weights<T>& w, T logits, const T& targets, const T& log_sum,
                  const T& d_log_prob, const T& entropy, const T& d_entropy, double temperature) {
  const auto column = [&](const T& t) { return ops.view(t, {-1, 1}); };
  const double cap = w.architecture.logit_softcap;
  const double divisor = logits_divisor(w, temperature);
  // Derivative of the cap: 1 - (capped / cap)^2, computed before the capped logits are overwritten.
  T slope;
  if (cap > 0) slope = ops.softcap_slope(logits, cap / divisor);
  ops.subtract_(logits, column(log_sum));  // log p
  if (d_entropy.defined()) {
    const T p = ops.exp(logits);
    // dH / dlogit_j = -p_j (log p_j + H)
    ops.add_(logits, column(entropy));
    ops.multiply_(logits, column(ops.negate(d_entropy)));
    ops.subtract_(logits, column(d_log_prob));
    ops.multiply_(logits, p);
  } else {
    ops.exp_(logits);
    ops.multiply_(logits, column(ops.negate(d_log_prob)));
  }
  {
    const OwnIndices<T> own = ops.own_indices(targets, logits.size(1), spec::Axis::kTensor);
    ops.add_to_last_(logits, own.indices, ops.cleared(d_log_prob, own.foreign));
  }
  if (slope.defined()) ops.multiply_(logits, slope);
  if (divisor != 1) ops.scale_(logits, 1 / divisor);
  return logits;
}

/// (R, C) -> (R, V) as the head's matrix product writes them, neither capped nor divided; whole on every rank.
template <class Ops, class T = typename Ops::Tensor>
T raw_logits(Ops& ops, const Weights<T>& w, const T& hidden) {
  const spec::Architecture& a = w.architecture;
  const bool joins = a.final_norm && !w.project_out.defined() && ops.own_kernels(ops.dtype(hidden));
  const T z = joins ? ops.norm_and_add_(a.norm, hidden, w.final_norm.weight, w.final_norm.bias,
                                        a.norm_eps, T())
                    : head_input(ops, w, hidden, static_cast<SavedHeadInput<T>*>(nullptr));
  return ops.join_columns(decode_linear(ops, w.lm_head, z), spec::Axis::kTensor);
}
/// (R, C) -> (R, V) wide logits, whole on every rank, for sampling.
template <class Ops, class T = typename Ops::Tensor>
T logits(Ops& ops, const Weights<T>& w, const T& hidden) {
  const T z = head_input(ops, w, hidden, static_cast<SavedHeadInput<T>*>(nullptr));
  return ops.join_columns(scaled_logits(ops, w, z, 1), spec::Axis::kTensor);
}

template <class Ops, class T = typename Ops::Tensor>
LogProbs<T> make_log_probs(Ops& ops, const T& hidden, std::int64_t rows,
                           const LogProbOptions& options) {
  const Dtype dtype = wide(ops.dtype(hidden));
  LogProbs<T> out;
  out.log_probs = ops.empty({rows}, dtype);
  if (options.entropy) out.entropy = ops.empty({rows}, dtype);
  if (options.accuracy) out.right = ops.empty({rows}, dtype);
  out.log_sum = ops.empty({rows}, dtype);
  return out;
}
template <class Ops, class T = typename Ops::Tensor>
void put(Ops& ops, const LogProbs<T>& all, std::int64_t first, std::int64_t n,
         const LogProbs<T>& part) {
  ops.copy_(ops.narrow(all.log_probs, 0, first, n), part.log_probs);
  ops.copy_(ops.narrow(all.log_sum, 0, first, n), part.log_sum);
  if (all.entropy.defined()) ops.copy_(ops.narrow(all.entropy, 0, first, n), part.entropy);
  if (all.right.defined()) ops.copy_(ops.narrow(all.right, 0, first, n), part.right);
}

/// The logits of z (n, E). Neap's kernels read them as the head's matrix product wrote them, if
/// they support the type and rows are whole. Otherwise the functions above are used.
template <class Ops>
class LogitsChunk {
  using T = typename Ops::Tensor;

 public:
  LogitsChunk(Ops& ops, const Weights<T>& w, const T& z, double temperature)
      : ops_(ops),
        w_(w),
        temperature_(temperature),
        own_(ops.own_kernels(ops.dtype(z)) && ops.ranks(spec::Axis::kTensor) == 1),
        logits_(own_ ? linear(ops, w.lm_head, z) : scaled_logits(ops, w, z, temperature)) {}

  /// Writes rows first .. first + n of `all`, and returns them. Keeps the logits.
  LogProbs<T> values(const T& targets, const LogProbOptions& options, const LogProbs<T>& all,
                     std::int64_t first, std::int64_t n) {
    if (own_) return own_values(targets, all, first, n);
    LogProbs<T> out =
        reduce_logits(ops_, ops_.clone(logits_), targets, options, spec::Axis::kTensor);
    put(ops_, all, first, n, out);
    return out;
  }
  /// Like values, but destroys the logits: this needs less memory.
  void last_values(const T& targets, const LogProbOptions& options, const LogProbs<T>& all,
                   std::int64_t first, std::int64_t n) {
    if (own_) {
      (void)own_values(targets, all, first, n);
      return;
    }
    const std::int64_t part = (n + options.parts - 1) / options.parts;
    for (std::int64_t i = 0; i < n; i += part) {
      const std::int64_t m = std::min(part, n - i);
      put(ops_, all, first + i, m,
          reduce_logits(ops_, ops_.narrow(logits_, 0, i, m), ops_.narrow(targets, 0, i, m), options,
                        spec::Axis::kTensor));
    }
  }
  /// Like logits_gradient. Destroys the logits.
  T gradient(const T& targets, const T& log_sum, const T& d_log_prob, const T& entropy,
             const T& d_entropy) {
    if (!own_)
      return logits_gradient(ops_, w_, std::move(logits_), targets, log_sum, d_log_prob, entropy,
                             d_entropy, temperature_);
    ops_.logit_gradient_(logits_, targets, log_sum, d_log_prob, entropy, d_entropy, shape());
    return std::move(logits_);
  }

 private:
  LogProbs<T> own_values(const T& targets, const LogProbs<T>& all, std::int64_t first,
                         std::int64_t n) {
    const auto part = [&](const T& t) { return t.defined() ? ops_.narrow(t, 0, first, n) : T(); };
    const LogProbs<T> out{part(all.log_probs), part(all.entropy), part(all.right),
                          part(all.log_sum)};
    ops_.logit_values_into(out.log_probs, out.log_sum, out.entropy, out.right, logits_, targets,
                           shape());
    return out;
  }
  [[nodiscard]] LogitShape shape() const {
    return {w_.architecture.logit_softcap, logits_divisor(w_, temperature_)};
  }

  Ops& ops_;
  const Weights<T>& w_;
  double temperature_;
  bool own_;
  T logits_;  // (n, V)
};

/// log p(targets) at `rows` of hidden (N, C). targets (R,) int64.
template <class Ops, class T = typename Ops::Tensor>
LogProbs<T> log_probs(Ops& ops, const Weights<T>& w, const T& hidden, const T& rows,
                      const T& targets, const LogProbOptions& options) {
  const HeadRows<Ops> head(ops, hidden, rows, options.chunk_elements, w.architecture.vocab_size);
  const LogProbs<T> out = make_log_probs(ops, hidden, head.count(), options);
  head.for_each([&](std::int64_t first, std::int64_t n) {
    LogitsChunk<Ops> logits = [&] {
      const T z =
          head_input(ops, w, head.hidden(first, n), static_cast<SavedHeadInput<T>*>(nullptr));
      return LogitsChunk<Ops>(ops, w, z, options.temperature);
    }();
    logits.last_values(ops.narrow(targets, 0, first, n), options, out, first, n);
  });
  return out;
}

/// From g (n, V), the gradient of the logits of z (n, E): adds the matrix's gradient, and writes that of
/// the rows' hidden states into d_hidden.
template <class Ops, class T = typename Ops::Tensor>
void logits_backward(Ops& ops, const Weights<T>& w, const HeadRows<Ops>& head,
                     SavedHeadInput<T>& saved, T z, T g, const T& d_hidden, std::int64_t first,
                     std::int64_t n) {
  g = ops.convert(std::move(g), ops.dtype(z));
  T d = linear_backward(ops, w.lm_head, z, g);
  ops.sum_over_(d, spec::Axis::kTensor);
  g = T();
  z = T();
  head.put(d_hidden, first, n, head_input_backward(ops, w, saved, std::move(d)));
}

/// Gradient of a loss through log_probs. d_log_probs and d_entropy are (R,); either may be
/// undefined. Recomputes the logits, adds to the head's gradients, and returns d_hidden (N, C).
template <class Ops, class T = typename Ops::Tensor>
T log_probs_backward(Ops& ops, const Weights<T>& w, const T& hidden, const T& rows,
                     const T& targets, const LogProbs<T>& forward, const T& d_log_probs,
                     const T& d_entropy, const LogProbOptions& options) {
  const HeadRows<Ops> head(ops, hidden, rows, options.chunk_elements, w.architecture.vocab_size);
  const T d_hidden = ops.zeros({hidden.size(0), hidden.size(1)}, ops.dtype(hidden));
  head.for_each([&](std::int64_t first, std::int64_t n) {
    const auto part = [&](const T& t) { return t.defined() ? ops.narrow(t, 0, first, n) : T(); };
    SavedHeadInput<T> saved;
    T z = head_input(ops, w, head.hidden(first, n), &saved);
    T g = LogitsChunk<Ops>(ops, w, z, options.temperature)
              .gradient(part(targets), part(forward.log_sum), part(d_log_probs),
                        part(forward.entropy), part(d_entropy));
    logits_backward(ops, w, head, saved, std::move(z), std::move(g), d_hidden, first, n);
  });
  return d_hidden;
}

template <class T>
struct CrossEntropy {
  LogProbs<T> values;
  T d_hidden;  // (N, C)
};
/// loss = -sum(weights * log_probs) with weights (R,). Values and gradient take one pass, with one
/// matrix product less than log_probs and log_probs_backward.
template <class Ops, class T = typename Ops::Tensor>
CrossEntropy<T> cross_entropy(Ops& ops, const Weights<T>& w, const T& hidden, const T& rows,
                              const T& targets, const T& weights, const LogProbOptions& options) {
  const HeadRows<Ops> head(ops, hidden, rows, options.chunk_elements, w.architecture.vocab_size);
  CrossEntropy<T> out{make_log_probs(ops, hidden, head.count(), options),
                      ops.zeros({hidden.size(0), hidden.size(1)}, ops.dtype(hidden))};
  head.for_each([&](std::int64_t first, std::int64_t n) {
    const T target = ops.narrow(targets, 0, first, n);
    SavedHeadInput<T> saved;
    T z = head_input(ops, w, head.hidden(first, n), &saved);
    LogitsChunk<Ops> logits(ops, w, z, options.temperature);
    const LogProbs<T> values = logits.values(target, options, out.values, first, n);
    const T d_log_prob = ops.negate(ops.narrow(weights, 0, first, n));
    T g = logits.gradient(target, values.log_sum, d_log_prob, T(), T());
    logits_backward(ops, w, head, saved, std::move(z), std::move(g), out.d_hidden, first, n);
  });
  return out;
}

// ---- scalar head ----

/// (R,) wide at `rows` of hidden (N, C); undefined: all rows.
template <class Ops, class T = typename Ops::Tensor>
T scores(Ops& ops, const Weights<T>& w, const T& hidden, const T& rows) {
  const HeadRows<Ops> head(ops, hidden, rows, spec::kLogitsChunk, hidden.size(1));
  const T out = ops.empty({head.count()}, wide(ops.dtype(hidden)));
  head.for_each([&](std::int64_t first, std::int64_t n) {
    const T z = head_input(ops, w, head.hidden(first, n), static_cast<SavedHeadInput<T>*>(nullptr));
    ops.copy_(ops.narrow(out, 0, first, n), ops.view(linear(ops, w.score, z), {-1}));
  });
  return out;
}

/// From d_scores (R,): adds to the head's gradients, and returns d_hidden (N, C).
template <class Ops, class T = typename Ops::Tensor>
T scores_backward(Ops& ops, const Weights<T>& w, const T& hidden, const T& rows,
                  const T& d_scores) {
  const HeadRows<Ops> head(ops, hidden, rows, spec::kLogitsChunk, hidden.size(1));
  const T d_hidden = ops.zeros({hidden.size(0), hidden.size(1)}, ops.dtype(hidden));
  head.for_each([&](std::int64_t first, std::int64_t n) {
    SavedHeadInput<T> saved;
    const T z = head_input(ops, w, head.hidden(first, n), &saved);
    const T d =
        ops.convert(ops.view(ops.narrow(d_scores, 0, first, n), {-1, 1}), ops.dtype(hidden));
    T dz = linear_backward(ops, w.score, z, d);
    head.put(d_hidden, first, n, head_input_backward(ops, w, saved, std::move(dz)));
  });
  return d_hidden;
}

}  // namespace neap::step
