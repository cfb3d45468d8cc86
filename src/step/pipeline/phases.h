// The micro-batches of a phase, and scoring. Losses are in training.h, generation in generation.h,
// and phases in runner.h.
//
// Experience is on the host, and each micro-batch is copied to the device. Results go to the host
// through the caller's sinks. ops.repeat(n, body) is a loop in a run. A plan runs only its first
// few rounds: padded micro-batches of a phase have the same shape, and for packed ones it counts
// the largest.
//
// B sequences of W columns; R response tokens each.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "spec/recipe/recipe.h"
#include "step/pipeline/stage_forwards.h"

namespace neap::step {

/// The micro-batches of all sequences in an inference phase: the packed ones, or padded ones of
/// `size`.
template <class T>
std::vector<MicroBatch> inference_cuts(const Sequences<T>& all, std::int64_t size) {
  return all.packed ? all.packed->cuts.at(0) : padded_cuts(all.size(), size);
}
/// Calls visit(group) for each group, in order. In a plan, groups with the same numbers of rows
/// have the same cost.
template <class Ops, class Visit>
void for_each_group(Ops& ops, const std::vector<MicroBatch>& cuts, std::int64_t together,
                    const Visit& visit) {
  const std::size_t size = group_size(cuts, together);
  for (auto from = cuts.begin(); from != cuts.end();) {
    if (from->aside) {
      const std::vector<MicroBatch> group(size, *from++);
      ops.aside([&] { visit(Group(group)); });  // may be skipped
      continue;
    }
    const auto to = std::find_if(from, cuts.end(), [](const MicroBatch& m) { return m.aside; });
    for (Group rest(from, to); !rest.empty();) {
      const Group group = rest.first(std::min(size, rest.size()));
      const std::size_t alike = groups_alike(rest, group.size());
      ops.repeat(static_cast<std::int64_t>(alike), [&](std::int64_t i) {
        visit(rest.subspan(static_cast<std::size_t>(i) * group.size(), group.size()));
      });
      rest = rest.subspan(alike * group.size());
    }
    from = to;
  }
}
/// Calls visit(micro-batch) for each.
template <class Ops, class Visit>
void for_each_micro_batch(Ops& ops, const std::vector<MicroBatch>& cuts, const Visit& visit) {
  for_each_group(ops, cuts, 1, [&](Group group) { visit(group.front()); });
}

// ---- inference phases ----

/// The micro-batches of an inference phase.
struct InferenceCuts {
  std::int64_t rows = 1;      ///< rows of a padded micro-batch
  std::int64_t together = 1;  ///< micro-batches per group
};

/// Visits the hidden states (N, C) of each micro-batch of a group, with its data on the device.
/// Only the last pipeline stage has them.
template <class Ops, class Visit>
void for_each_hidden(Ops& ops, const Weights<typename Ops::Tensor>& w,
                     const Sequences<typename Ops::Tensor>& all, const InferenceCuts& how,
                     const Visit& visit) {
  using T = typename Ops::Tensor;
  const std::vector<MicroBatch> cuts = inference_cuts(all, how.rows);
  if (w.architecture.pipeline.stages > 1)
    return StageForwards(ops, w, all, visit).run(cuts, how.together);
  const std::int64_t groups = groups_of(cuts, how.together);
  const std::int64_t further = further_passes(w, groups);
  expect_passes(w, Sweep::kForward, groups + further);
  const auto run = [&](Group group) {
    std::vector<DeviceBatch<Ops>> batches;
    std::vector<BatchTokens<T>> tokens;
    for (const MicroBatch& micro : group)
      tokens.push_back(
          batches.emplace_back(ops, all, micro.first, micro.count, loss_dtype(ops, w)).tokens());
    std::vector<T> hidden = forward(ops, w, tokens, w.architecture.chunk(0));
    tokens.clear();
    visit(group, batches, hidden);
  };
  for_each_group(ops, cuts, how.together, run);
  for (std::int64_t i = 0; i < further; ++i) run({});
}

/// Computes log-probabilities of the responses, and other requested values. sink(micro, values)
/// receives LogProbs of host tensors (fresh, R), without log_sum.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void log_prob_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all,
                    const InferenceCuts& how, const LogProbOptions& options, const Sink& sink) {
  for_each_hidden(ops, w, all, how, [&](Group group, const auto& batches, std::vector<T>& hidden) {
    std::vector<LogProbs<T>> results;
    {
      const UsedTable<T> head(w, Table::kHead);
      for (std::size_t i = 0; i < batches.size(); ++i) {
        results.push_back(log_probs(ops, w, hidden[i], batches[i].response_rows(),
                                    batches[i].targets(), options));
      }
    }
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const MicroBatch& micro = group[i];
      const auto fresh = [&](const T& t) {
        if (!t.defined()) return T();
        return ops.to_host(ops.narrow(batches[i].by_sequence(t), 0, micro.seen, micro.fresh()));
      };
      LogProbs<T> values;
      values.log_probs = fresh(results[i].log_probs);
      values.entropy = fresh(results[i].entropy);
      values.right = fresh(results[i].right);
      sink(micro, values);
    }
  });
}

/// Scores of every response token (fresh, R), or of the last token (fresh,), as host tensors.
template <class Ops, class Sink, class T = typename Ops::Tensor>
void score_phase(Ops& ops, const Weights<T>& w, const Sequences<T>& all, const InferenceCuts& how,
                 bool every_token, const Sink& sink) {
  for_each_hidden(ops, w, all, how, [&](Group group, const auto& batches, std::vector<T>& hidden) {
    const UsedTable<T> head(w, Table::kHead);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const DeviceBatch<Ops>& batch = batches[i];
      const T rows = every_token ? batch.response_rows() : batch.last_token_rows();
      T out = scores(ops, w, hidden[i], rows);
      out = every_token ? batch.by_sequence(out) : batch.last_by_sequence(out);
      sink(group[i], ops.to_host(ops.narrow(out, 0, group[i].seen, group[i].fresh())));
    }
  });
}

// ---- mini-batches of training phases ----

/// The micro-batches of each mini-batch: packed, or of equal size.
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
