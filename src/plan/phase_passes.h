// The passes of a job's phases over operations, with weights and batches of the job's sizes.
//
// The plan's operations only count; tests run the same passes on libtorch and compare every request.
//
// Cost   counting takes milliseconds: two rounds are run of each loop, and of a long
//        generation a few dozen steps.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/tags.h"
#include "step/bind.h"
#include "step/counting_ops.h"
#include "step/optimizer.h"
#include "step/phases.h"

namespace neap::plan {

/// Units that training steps: the adapters', or the base's without them.
[[nodiscard]] std::vector<spec::FlatUnit> trained_units(const ModelRole& role);

/// Packed sequences with which attention takes more scratch memory than with the most or the fewest;
/// 0 where it does not.
[[nodiscard]] std::int64_t further_sequences(const step::KernelProfile& profile,
                                             const spec::Architecture& shape,
                                             const step::PackingLimits& packing,
                                             const step::SequenceLimits& limits);
/// The sequences of a micro-batch of a training phase, with as many rows as any.
[[nodiscard]] step::Spans<step::CountedTensor> micro_batch_spans(const spec::Job& job,
                                                                 const spec::Phase& phase);

template <class World>
class PhasePasses {
  using Ops = typename World::Ops;
  using T = typename Ops::Tensor;
  using Weights = step::Weights<T>;

 public:
  PhasePasses(World& world, const spec::Job& job)
      : world_(world),
        ops_(world.ops()),
        job_(job),
        width_(job.max_sequence_length()),
        response_(job.data.max_response_length) {}

  /// How a phase generates.
  struct Generation {
    std::int64_t batch = 1;  ///< sequences that are decoded together
    std::int64_t n = 1;      ///< for each prompt
    step::SamplingOptions sampling;
    bool waits = false;  ///< there may be more sequences, which start as others end
    std::int64_t most_decode_steps = 1;
  };

  /// One of the batches that the phase decodes in turn.
  void generate(const ModelRole& role, const Generation& g) {
    const Weights w = world_.weights(role);
    const step::SlotCache<T> cache = world_.cache(role, job_.rollout_batch(), width_);
    const std::int64_t prompts = std::min(job_.prefill().prompts, step::div_up(g.batch, g.n));
    const std::int64_t started = std::min(g.batch, prompts * g.n);
    world_.weighted(static_cast<double>(g.batch) / static_cast<double>(started),
                    [&] { prefill(w, cache, prompts, g); });
    const std::int64_t prompt = job_.data.max_prompt_length;
    const std::int64_t steps = std::min(response_ - 1, g.most_decode_steps);
    const double each = static_cast<double>(response_ - 1) / static_cast<double>(steps);
    for (std::int64_t i = 1; i <= steps; ++i) {
      const std::int64_t limit = prompt + (response_ - 1) * i / steps;
      world_.weighted(each, [&] { decode(w, cache, g.batch, limit, g.sampling); });
    }
    ops_.aside([&] { smaller_passes(w, cache, prompts, g); });
  }

  /// All batches of a phase that makes `responses`.
  void generate_phase(const ModelRole& role, const spec::Phase& phase, std::int64_t responses,
                      std::int64_t most_decode_steps) {
    const std::int64_t batch = spec::batching_of(job_, phase).rows;
    const double batches = static_cast<double>(responses) / static_cast<double>(batch);
    const spec::ValidationSampling& validation = job_.rollout.val_kwargs;
    const Generation held_out{batch, validation.n, step::sampling_options(validation), true,
                              most_decode_steps};
    if (job_.task == spec::Task::kEval)
      return world_.weighted(batches, [&] { generate(role, held_out); });
    // Validation runs in this phase, too, outside of a step; it may take more memory.
    const bool validates = !job_.data.val_files.empty() && !phase.baseline;
    Generation g{batch, job_.rollout.n, step::sampling_options(job_.rollout),
                 validates || responses > batch, most_decode_steps};
    if (phase.baseline) {
      g.n = 1;
      g.sampling = step::greedy_sampling();
    }
    g.sampling.log_probs = !phase.baseline && job_.keeps_rollout_log_probs();
    world_.weighted(batches, [&] { generate(role, g); });
    const bool sorts = step::needs_order(held_out.sampling) && !step::needs_order(g.sampling);
    if (validates && (sorts || held_out.n > g.n))
      world_.weighted(0, [&] { generate(role, held_out); });
  }

  void log_probs(const ModelRole& role, const spec::Batching& batching, bool entropy,
                 bool accuracy = false) {
    const Weights w = world_.weights(role);
    step::LogProbOptions options;
    options.temperature = job_.log_prob_temperature();
    options.entropy = entropy;
    options.accuracy = accuracy;
    step::log_prob_phase(ops_, w, sequences(role, batching), batching.rows, options,
                         [](const auto&...) {});
  }

  void scores(const ModelRole& role, const spec::Batching& batching, bool every_token) {
    const Weights w = world_.weights(role);
    step::score_phase(ops_, w, sequences(role, batching), batching.rows, every_token,
                      [](const auto&...) {});
  }

  void train_critic(const ModelRole& role, const spec::Phase& phase) {
    const spec::CriticConfig& config = job_.critic;
    const step::Experience<T> e = experience(role, phase);
    train(role, phase, e.sequences, [&](const Weights& w, std::int64_t first, std::int64_t count) {
      (void)step::value_micro_batch(ops_, w, e, first, count, config.cliprange_value,
                                    config.loss_agg_mode, {}, role.checkpointing);
    });
  }

  void train_actor(const ModelRole& role, const spec::Phase& phase) {
    const step::Experience<T> e = experience(role, phase);
    const step::PolicyObjective objective = step::policy_objective(job_, {});
    step::LogProbOptions options;
    options.temperature = job_.log_prob_temperature();
    options.entropy = job_.actor.entropy_coeff != 0;
    train(role, phase, e.sequences, [&](const Weights& w, std::int64_t first, std::int64_t count) {
      (void)step::policy_micro_batch(ops_, w, e, first, count, objective, options,
                                     role.checkpointing);
    });
  }

  void sft(const ModelRole& role, const spec::Phase& phase) {
    const step::Sequences<T> all = training_sequences(role, phase);
    train(role, phase, all, [&](const Weights& w, std::int64_t first, std::int64_t count) {
      (void)step::cross_entropy_micro_batch(ops_, w, all, first, count, 1, role.checkpointing);
    });
  }

  void reward(const ModelRole& role, const spec::Phase& phase) {
    const step::Sequences<T> all = training_sequences(role, phase);
    const T margins = floats({all.size() / 2});
    train(role, phase, all, [&](const Weights& w, std::int64_t first, std::int64_t pairs) {
      (void)step::pair_micro_batch(ops_, w, all, margins, first, pairs,
                                   job_.center_rewards_coefficient, 1, role.checkpointing);
    });
  }

  void dpo(const ModelRole& role, const spec::Phase& phase) {
    step::Sequences<T> sequences = training_sequences(role, phase);
    const T reference = floats({sequences.size()});
    const step::Preferences<T> all{std::move(sequences), reference};
    train(role, phase, all.sequences,
          [&](const Weights& w, std::int64_t first, std::int64_t count) {
            (void)step::preference_micro_batch(ops_, w, all, first, count, job_.dpo, 1,
                                               role.checkpointing);
          });
  }

  /// The body of a phase of the job's recipe.
  void run(const JobModels& models, const spec::Phase& phase, std::int64_t most_decode_steps);

 private:
  class Optimizer {
   public:
    Optimizer(Ops& ops, std::vector<step::TrainedUnit<T>> units, spec::TrainPart part,
              const ModelRole& role, step::Dtype compute)
        : ops_(ops),
          units_(std::move(units)),
          part_(part),
          spec_(optimizer_of(role, compute)),
          config_(role.optimizer) {}
    void begin(std::int64_t, std::int64_t) { step::zero_gradients(ops_, units_); }
    void finish(std::int64_t) {
      if (part_ == spec::TrainPart::kAll) update();
    }
    void update() {
      (void)step::gradient_norm(ops_, units_);
      for (const step::TrainedUnit<T>& unit : units_) step::step_unit(ops_, unit, {spec_, config_});
    }

   private:
    Ops& ops_;
    std::vector<step::TrainedUnit<T>> units_;
    spec::TrainPart part_;
    spec::OptimizerSpec spec_;
    spec::OptimizerConfig config_;
  };

  template <class Micro>
  void train(const ModelRole& role, const spec::Phase& phase, const step::Sequences<T>& all,
             const Micro& micro) {
    const Weights w = world_.weights(role);
    Optimizer optimizer(ops_, world_.units(role), phase.part, role, world_.dtype());
    if (phase.part == spec::TrainPart::kUpdate) return optimizer.update();
    const spec::UpdateShape shape = spec::update_shape(job_, phase.body);
    step::update_phase(ops_, shape, step::update_cuts(shape, all), optimizer,
                       [&](std::int64_t first, std::int64_t count) { micro(w, first, count); });
  }

  // Experience and batches are on the host.
  [[nodiscard]] T longs(const step::Shape& s, std::int64_t value = 0) const {
    return world_.host(s, step::Dtype::kInt64, value);
  }
  [[nodiscard]] T floats(const step::Shape& s) const {
    return world_.host(s, step::Dtype::kFloat32, 0);
  }
  [[nodiscard]] step::Draw<T> draw(const step::SamplingOptions& sampling, std::int64_t rows,
                                   std::int64_t seen) const {
    if (!sampling.penalizes()) return {floats({rows}), {}, {}};
    return {floats({rows}), longs({rows, seen}), floats({rows, seen})};
  }
  /// Prefills `prompts` together for the sequences of each, or one in chunks.
  void prefill(const Weights& w, const step::SlotCache<T>& cache, std::int64_t prompts,
               const Generation& g) {
    const std::int64_t started = std::min(g.batch, prompts * g.n);
    const step::Draw<T> first = draw(g.sampling, started, job_.data.max_prompt_length);
    if (in_chunks()) {
      (void)step::prefill_in_chunks_and_sample(ops_, w, long_prompt(g, started), first, cache,
                                               g.sampling);
      return;
    }
    const std::int64_t longest = job_.data.max_prompt_length;
    const std::int64_t copies = std::min(g.n, g.batch);
    const step::PromptBatch<T> some{longs({prompts, longest}), longs({prompts}, longest),
                                    longs({copies, prompts}), longs({started})};
    (void)step::prefill_and_sample(ops_, w, some, first, cache, g.sampling);
  }
  [[nodiscard]] bool in_chunks() const {
    return job_.prefill().tokens < job_.data.max_prompt_length;
  }
  [[nodiscard]] step::LongPrompt<T> long_prompt(const Generation& g, std::int64_t started) const {
    const std::int64_t longest = job_.data.max_prompt_length;
    step::LongPrompt<T> out{longs({longest}), {}, longs({started}), job_.prefill().tokens};
    for (std::int64_t row = 0; row < std::min(g.n, g.batch); ++row) out.rows.push_back(row);
    return out;
  }
  void decode(const Weights& w, const step::SlotCache<T>& cache, std::int64_t rows,
              std::int64_t limit, const step::SamplingOptions& sampling) {
    step::DecodeRows<T> now = step::decode_rows(ops_, longs({rows}), longs({rows}), longs({rows}));
    (void)step::decode_and_sample(ops_, w, now, draw(sampling, rows, limit), cache, limit,
                                  sampling);
  }

  /// Passes with fewer rows as sequences end, fewer prompts as they start one after another, shorter
  /// chunks. Their tensors are smaller, but a pool keeps segments for the most that its small ones
  /// and its large ones took, which may be of different passes.
  void smaller_passes(const Weights& w, const step::SlotCache<T>& cache, std::int64_t prompts,
                      const Generation& g) {
    for_smaller(g.batch,
                [&](std::int64_t rows) { decode(w, cache, rows, width_ - 1, g.sampling); });
    if (in_chunks()) {
      const step::LongPrompt<T> one = long_prompt(g, 1);
      for_smaller(one.chunk, [&](std::int64_t n) {
        (void)step::prefill_part(ops_, w, one, job_.data.max_prompt_length - n, n, cache);
      });
    } else if (g.waits) {
      for_smaller(prompts, [&](std::int64_t some) { prefill(w, cache, some, g); });
    }
  }
  template <class Visit>
  static void for_smaller(std::int64_t size, const Visit& visit) {
    constexpr std::int64_t kMostSizes = 256;
    const std::int64_t step = step::div_up(size, kMostSizes);
    for (std::int64_t n = size - step; n > 0; n -= step) visit(n);
  }
  [[nodiscard]] step::Sequences<T> padded(std::int64_t n) const {
    return {longs({n, width_}),
            longs({n, response_}),
            longs({n, response_}),
            floats({n, response_}),
            longs({n}),
            longs({n})};
  }
  /// `mini_batches` of so many rows as the phase takes, or what stands for them where they are packed.
  [[nodiscard]] step::Sequences<T> sequences(const ModelRole& role, const spec::Batching& batching,
                                             std::int64_t mini_batches = 1) const {
    if (batching.tokens == 0)
      return padded(mini_batches * batching.most_rows * batching.sequences_of_row);
    const step::SequenceLimits limits{width_, response_, batching.sequences_of_row};
    const auto packing = step::PackingLimits::of(batching.tokens, batching.most_rows, limits);
    const step::PackedLayout layout =
        step::extreme_layout(batching.most_rows, batching.tokens, limits,
                             further_sequences(world_.profile(), role.shape, packing, limits));
    step::Sequences<T> all = padded(std::ssize(layout.starts) - 1);
    const std::int64_t tokens = layout.starts.back();
    const std::int64_t counted = layout.counts.back();
    all.packed = {longs({tokens}),
                  longs({tokens}),
                  longs({counted}),
                  longs({counted}),
                  longs({counted}),
                  longs({all.size()}),
                  layout.starts,
                  layout.counts,
                  step::Cuts(static_cast<std::size_t>(mini_batches), layout.micro_batches)};
    return all;
  }
  [[nodiscard]] step::Sequences<T> training_sequences(const ModelRole& role,
                                                      const spec::Phase& phase) const {
    const spec::UpdateShape shape = spec::update_shape(job_, phase.body);
    return sequences(role, spec::batching_of(job_, phase), shape.rows / shape.mini_batch);
  }
  [[nodiscard]] step::Experience<T> experience(const ModelRole& role,
                                               const spec::Phase& phase) const {
    step::Sequences<T> sequences = training_sequences(role, phase);
    const T per_token = floats({sequences.size(), response_});
    const T weights = job_.algorithm.rollout_correction.weighs_batch() ? per_token : T();
    const T noise = spec::draws_tokens(job_.actor.loss_mode) ? per_token : T();
    return {std::move(sequences),
            per_token,
            per_token,
            per_token,
            per_token,
            per_token,
            weights,
            noise};
  }

  World& world_;
  Ops& ops_;
  const spec::Job& job_;
  std::int64_t width_, response_;
};

template <class World>
void PhasePasses<World>::run(const JobModels& models, const spec::Phase& phase,
                             std::int64_t most_decode_steps) {
  ModelRole role = models.at(phase.model);
  if (phase.adapter_off) role.lora = {};
  const spec::Batching batching = spec::batching_of(job_, phase);
  const std::int64_t responses = phase.baseline ? job_.rows_per_rank() : job_.sequences_per_rank();
  switch (phase.body) {
    case spec::Body::kGenerate:
      return generate_phase(role, phase, responses, most_decode_steps);
    case spec::Body::kLogProbs:
      return log_probs(role, batching, phase.id != spec::PhaseId::kReferenceLogProbs);
    case spec::Body::kTokenScores:
      return scores(role, batching, true);
    case spec::Body::kSequenceScores:
      return scores(role, batching, false);
    case spec::Body::kPolicyUpdate:
      return train_actor(role, phase);
    case spec::Body::kValueUpdate:
      return train_critic(role, phase);
    case spec::Body::kCrossEntropyUpdate:
      return sft(role, phase);
    case spec::Body::kPairUpdate:
      return reward(role, phase);
    case spec::Body::kPreferenceUpdate:
      return dpo(role, phase);
    case spec::Body::kCrossEntropy:
      return log_probs(role, batching, false, true);
    case spec::Body::kPairScores:
      return scores(role, batching, false);
  }
}

/// Runs the passes of one phase of `job` over counting operations. `most_decode_steps`: of a
/// generation so many, evenly spread, the longest included.
void count_phase(step::CountingOps& ops, const spec::Job& job, const JobModels& models,
                 step::Dtype dtype, const spec::Phase& phase, std::int64_t most_decode_steps);

/// A model whose parameters take no memory: their regions are counted elsewhere.
[[nodiscard]] step::Weights<step::CountedTensor> counted_weights(const ModelRole& role,
                                                                 step::Dtype dtype);

}  // namespace neap::plan
