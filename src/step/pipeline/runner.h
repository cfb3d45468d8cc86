// The body of every phase: what it reads, its options, micro-batches, losses and update.
//
// A Backend provides operations, a model, data, places for results, and the ranks. The plan's has
// shapes (plan/counting/counted_backend.h), and the trainer's has tensors (rlhf/trainer/live_backend.h). Both run
// this code, so a phase requests the same memory in both.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "spec/recipe/recipe.h"
#include "step/generation/generation.h"
#include "step/pipeline/phases.h"
#include "step/pipeline/pipeline.h"
#include "step/training/training.h"
#include "step/units/optimizer.h"

namespace neap::step {

/// The mini-batches that one run of a phase takes, counted from the first of the training step.
struct UpdateRange {
  std::int64_t first = 0, count = 1;
};

template <class B, class T = typename B::Ops::Tensor>
concept Backend = requires(B& b, const spec::Phase& phase, const MicroBatch& micro, const T& t,
                           const LogProbs<T>& values, KeptNumbers<T> numbers, std::int64_t n,
                           double norm) {
  { b.ops() } -> std::same_as<typename B::Ops&>;
  { b.job() } -> std::same_as<const spec::Job&>;
  // The phase's model.
  { b.weights() } -> std::convertible_to<const Weights<T>&>;
  // The data that the phase reads, arranged as its Batching says.
  { b.experience() } -> std::same_as<const Experience<T>&>;
  // Receives the results of a micro-batch, on the host: log-probabilities (fresh, R) with the
  // phase's other results, or scores.
  b.take_log_probs(values);
  b.take_scores(t);

  // ---- generation ----
  // Calls visit(cache, source) for each GenerationSource (generation.h) of the phase, with its KvLayout.
  b.for_each_generation(phase, [](auto&, auto&) {});

  // ---- training ----
  { b.checkpointing() } -> std::same_as<const spec::Checkpointing&>;
  // The units, or pieces of them, whose gradients this rank keeps; and those that it updates.
  { b.units() } -> std::same_as<const std::vector<TrainedUnit<T>>&>;
  { b.pieces() } -> std::same_as<const std::vector<TrainedUnit<T>>&>;
  { b.updates(phase) } -> std::same_as<UpdateRange>;
  // The loss denominators of the mini-batch that starts with this rank's row n.
  { b.scale(n) } -> std::same_as<LossScale>;
  // Keeps the numbers of a micro-batch until the mini-batch ends.
  b.take_numbers(std::move(numbers));
  b.read_numbers();
  // Number of empty groups that this rank runs after its n, because other ranks have more and every
  // group has collectives.
  { b.further_groups(n) } -> std::same_as<std::int64_t>;
  // Reduces the gradients that the weights' sink has not started to reduce during backward. Sharded
  // gradients were already reduced after each group.
  b.reduce_gradients();
  // Returns the norms of all tiles from those of this rank's pieces. Then the step that follows,
  // which clips by the total norm. No step: the norm is not finite, and the weights stay unchanged
  // on all ranks. Calls visit(units) with units of other ranks, which a plan for all ranks counts
  // for memory only.
  b.beside([](const std::vector<TrainedUnit<T>>&) {});
  { b.all_norms(std::vector<double>()) } -> std::same_as<std::vector<double>>;
  { b.begin_step(n, norm) } -> std::same_as<std::optional<Update>>;
  // Calls visit(piece) for every piece of pieces(), or every part of them in order, while its
  // tensors are on the device.
  b.for_each_part([](const TrainedUnit<T>&) {});
  // All-gathers updated weights.
  b.gather_weights();
};

/// The norm of all ranks' gradients together.
template <Backend B>
double gradient_norm(B& b) {
  const auto& pieces = b.pieces();
  const std::vector<double> norms = b.all_norms(piece_norms(b.ops(), pieces, &b.weights()));
  if (b.weights().architecture.chunks() == 1) return joint_norm(b.ops(), norms);
  return joint_norm(b.ops(), norms, b.all_norms(piece_places(pieces, b.weights())));
}

/// One optimizer step, for mini-batch `update`, with the gradients of all ranks.
template <Backend B, class T = typename B::Ops::Tensor>
void update_weights(B& b, std::int64_t update) {
  b.beside([&](const std::vector<TrainedUnit<T>>& others) {
    (void)piece_norms(b.ops(), others, &b.weights());
  });
  const std::optional<Update> step = b.begin_step(update, gradient_norm(b));
  if (!step) return;
  b.for_each_part([&](const TrainedUnit<T>& part) { step_unit(b.ops(), part, *step); });
  b.gather_weights();
}

/// Forward, loss and backward of every micro-batch of a mini-batch, whose gradients start at zero.
/// `together` is the group size.
template <Backend B, class Objective, class T = typename B::Ops::Tensor>
void add_gradients(B& b, const std::vector<MicroBatch>& cuts, std::int64_t together,
                   const Objective& objective) {
  if (b.weights().architecture.pipeline.stages > 1) return add_stage_gradients(b, cuts, objective);
  const std::int64_t groups = groups_of(cuts, together);
  zero_gradients(b.ops(), b.units());
  const std::int64_t further = b.further_groups(groups);
  expect_passes(b.weights(), Sweep::kForwardBackward, groups + further);
  GradientSink<T>* const sink = b.weights().sink;
  std::optional<TiedRows<T>> tied;
  // Sharded gradients are reduced with each group.
  const bool leaves = sink != nullptr && sink->takes_groups();
  if (sink != nullptr) sink->begin_mini_batch(groups + further);
  if (groups > 1 && trains_tied_table(b.weights()) && !leaves) tied.emplace();
  // Otherwise, sums over the tensor-parallel group are made after backward, before any other
  // reduction.
  const bool early = sums_overlap_backward(b.ops(), b.weights().architecture);
  const auto run = [&](Group group, bool last) {
    if (sink != nullptr && early) sink->begin_group(last);
    for (KeptNumbers<T>& numbers :
         train_group(b.ops(), b.weights(), b.experience(), group, objective, b.checkpointing(),
                     tied ? &*tied : nullptr))
      b.take_numbers(std::move(numbers));
  };
  for_each_group(b.ops(), cuts, together, [&](Group group) {
    run(group, further == 0 && !group.empty() && &group.back() == &cuts.back());
  });
  for (std::int64_t i = 1; i <= further; ++i) run({}, i == further);
  if (!tied) return;
  with_embedding_gradients(b.ops(), b.weights(), [&] {
    for_each_micro_batch(b.ops(), cuts, [&](const MicroBatch& micro) {
      tied->add(b.ops(), b.weights().d_token_table, micro);
    });
  });
}

/// Reduces a mini-batch's gradients over ranks.
template <Backend B, class T = typename B::Ops::Tensor>
void reduce_gradients(B& b) {
  // Sharded gradients were already reduced with each group.
  const GradientSink<T>* const sink = b.weights().sink;
  if (sink == nullptr || !sink->takes_groups())
    for (const TrainedUnit<T>& unit : b.units())
      if (!unit.on_host)
        sum_spread_gradients(b.ops(), unit.unit, unit.gradients, b.weights().architecture.tensor);
  b.reduce_gradients();
  if (b.weights().source != nullptr) b.weights().source->read_norms(b.ops());
}

/// The mini-batches of a training phase, or its range of them. objective(scale) creates the
/// objective of a mini-batch.
template <Backend B, class MakeObjective>
void train_phase(B& b, const spec::Phase& phase, const MakeObjective& objective) {
  using spec::TrainPart;
  const spec::UpdateShape shape = spec::update_shape(b.job(), phase.body);
  const UpdateRange range = b.updates(phase);
  if (phase.part == TrainPart::kUpdate) return update_weights(b, range.first);
  const Cuts cuts = update_cuts(shape, b.experience().sequences);
  b.ops().repeat(range.count, [&](std::int64_t i) {
    const std::int64_t update = range.first + i;
    const std::int64_t row = update * shape.mini_batch % shape.rows;
    add_gradients(b, cuts.at(static_cast<std::size_t>(row / shape.mini_batch)),
                  phase.storage.together, objective(b.scale(row)));
    reduce_gradients(b);
    b.read_numbers();
    if (phase.part == TrainPart::kAll) update_weights(b, update);
  });
}

inline InferenceCuts inference_cuts_of(const spec::Job& job, const spec::Phase& phase) {
  return {spec::batching_of(job, phase).rows, phase.storage.together};
}

template <Backend B>
void log_prob_phase(B& b, const spec::Phase& phase) {
  using T = typename B::Ops::Tensor;
  LogProbOptions options;
  options.temperature = b.job().log_prob_temperature();
  options.entropy = phase.entropy;
  options.accuracy = phase.body == spec::Body::kCrossEntropy;
  options.chunk_elements = phase.logits_chunk;
  log_prob_phase(b.ops(), b.weights(), b.experience().sequences, inference_cuts_of(b.job(), phase),
                 options,
                 [&](const MicroBatch&, const LogProbs<T>& values) { b.take_log_probs(values); });
}

template <Backend B>
void score_phase(B& b, const spec::Phase& phase, bool every_token) {
  using T = typename B::Ops::Tensor;
  score_phase(b.ops(), b.weights(), b.experience().sequences, inference_cuts_of(b.job(), phase),
              every_token, [&](const MicroBatch&, const T& scores) { b.take_scores(scores); });
}

template <Backend B>
void generate(B& b, const spec::Phase& phase) {
  b.for_each_generation(phase, [&](auto& cache, auto& source) {
    run_generation(b.ops(), b.weights(), cache, source);
  });
}

/// Runs an open phase of the job's recipe.
template <Backend B>
void run_phase(B& b, const spec::Phase& phase) {
  const spec::Job& job = b.job();
  const auto in_chunks = [&phase](const auto& objective) {
    return [&phase, objective](const LossScale& scale) {
      auto out = objective(scale);
      out.options.chunk_elements = phase.logits_chunk;
      return out;
    };
  };
  switch (phase.body) {
    case spec::Body::kGenerate:
      return generate(b, phase);
    case spec::Body::kRolloutWeights:
      return;  // the backend prepares them
    case spec::Body::kLogProbs:
    case spec::Body::kCrossEntropy:
      return log_prob_phase(b, phase);
    case spec::Body::kTokenScores:
      return score_phase(b, phase, true);
    case spec::Body::kSequenceScores:
    case spec::Body::kPairScores:
      return score_phase(b, phase, false);
    case spec::Body::kPolicyUpdate:
      return train_phase(b, phase, in_chunks([&](const LossScale& scale) {
                           return PolicyObjective::of(job, scale);
                         }));
    case spec::Body::kValueUpdate:
      return train_phase(b, phase, [&](const LossScale& scale) {
        return ValueObjective{job.critic.cliprange_value, job.critic.loss_agg_mode, scale};
      });
    case spec::Body::kCrossEntropyUpdate:
      return train_phase(b, phase, in_chunks([](const LossScale& scale) {
                           return CrossEntropyObjective{scale.tokens};
                         }));
    case spec::Body::kPairUpdate:
      return train_phase(b, phase, [&](const LossScale& scale) {
        return PairObjective{job.center_rewards_coefficient, scale.sequences};
      });
    case spec::Body::kPreferenceUpdate:
      return train_phase(b, phase, in_chunks([&](const LossScale& scale) {
                           return PreferenceObjective{job.dpo, scale.sequences};
                         }));
  }
}

}  // namespace neap::step
