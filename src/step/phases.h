// The micro-batches of a phase, and scoring; training.h has losses, generation.h generation, runner.h the
// phases.
//
// Experience is on the host; each micro-batch is copied to the device. Results go to the host through
// the caller's sinks. ops.repeat(n, body) is a loop in a run. A plan runs only the first few rounds:
// every padded micro-batch of a phase has the same shape, and of packed ones it counts the largest.
//
// B sequences of W columns; R response tokens each.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "spec/recipe.h"
#include "step/batch.h"
#include "step/transformer.h"

namespace neap::step {

/// The micro-batches of all sequences in an inference phase: the packed ones, or padded ones of `size`.
template <class T>
std::vector<MicroBatch> inference_cuts(const Sequences<T>& all, std::int64_t size) {
  return all.packed ? all.packed->cuts.at(0) : padded_cuts(all.size(), size);
}
/// visit(micro-batch) for each. In a plan neighbours with as many rows have one shape.
template <class Ops, class Visit>
void for_each_micro_batch(Ops& ops, const std::vector<MicroBatch>& cuts, const Visit& visit) {
  for (auto from = cuts.begin(); from != cuts.end();) {
    auto to = from;
    while (to != cuts.end() && to->count == from->count && to->aside == from->aside) ++to;
    if (from->aside) {
      const MicroBatch& micro = *from++;
      ops.aside([&] { visit(micro); });  // or not
      continue;
    }
    ops.repeat(to - from, [&](std::int64_t i) { visit(from[i]); });
    from = to;
  }
}

// ---- inference phases ----

/// Log-probabilities of the responses and what else is requested. sink(micro, values) gets LogProbs of
/// host tensors (fresh, R), without log_sum.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void log_prob_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                    const LogProbOptions& options, const Sink& sink) {
  const std::vector<MicroBatch> cuts = inference_cuts(all, micro_size);
  expect_passes(w, Sweep::kForward, std::ssize(cuts));
  for_each_micro_batch(ops, cuts, [&](const MicroBatch& micro) {
    const DeviceBatch<Ops> batch(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, batch.tokens());
    const LogProbs<T> out = [&] {
      const UsedTable<T> head(w, Table::kHead);
      return log_probs(ops, w, hidden, batch.response_rows(), batch.targets(), options);
    }();
    const auto fresh = [&](const T& t) {
      if (!t.defined()) return T();
      return ops.to_host(ops.narrow(batch.by_sequence(t), 0, micro.seen, micro.fresh()));
    };
    LogProbs<T> values;
    values.log_probs = fresh(out.log_probs);
    values.entropy = fresh(out.entropy);
    values.right = fresh(out.right);
    sink(micro, values);
  });
}

/// Scores of every response token (fresh, R), or of the last token (fresh,), as host tensors.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void score_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, std::int64_t micro_size,
                 bool every_token, const Sink& sink) {
  const std::vector<MicroBatch> cuts = inference_cuts(all, micro_size);
  expect_passes(w, Sweep::kForward, std::ssize(cuts));
  for_each_micro_batch(ops, cuts, [&](const MicroBatch& micro) {
    const DeviceBatch<Ops> batch(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, batch.tokens());
    const T rows = every_token ? batch.response_rows() : batch.last_token_rows();
    T out = scores(ops, w, hidden, rows);
    if (every_token) out = batch.by_sequence(out);
    sink(micro, ops.to_host(ops.narrow(out, 0, micro.seen, micro.fresh())));
  });
}

// ---- mini-batches of training phases ----

/// The micro-batches of each mini-batch: the packed ones, or of equal size.
template <class T>
Cuts update_cuts(const spec::UpdateShape& shape, const Sequences<T>& all) {
  if (all.packed) return all.packed->cuts;
  Cuts out;
  for (std::int64_t first = 0; first < shape.rows; first += shape.mini_batch) {
    std::vector<MicroBatch>& cuts = out.emplace_back();
    for (std::int64_t i = 0; i < shape.mini_batch; i += shape.micro_batch)
      cuts.push_back({first + i, shape.micro_batch, 0});
  }
  return out;
}

}  // namespace neap::step
