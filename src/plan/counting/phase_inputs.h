// The inputs of a phase with the sizes that a plan counts: padded, or the extremes of packing.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"
#include "step/pipeline/pipeline_schedule.h"
#include "step/training/training.h"

namespace neap::plan {

/// Numbers of packed sequences for which attention takes more scratch memory than for larger
/// numbers, on one of `ranks` context-parallel ranks.
[[nodiscard]] std::vector<std::int64_t> further_sequences(const step::KernelProfile& profile,
                                                          const spec::Architecture& shape,
                                                          const step::PackingLimits& packing,
                                                          const step::SequenceLimits& limits,
                                                          std::int64_t ranks);

/// The sequences of a training micro-batch with the maximum number of rows.
[[nodiscard]] step::Spans<step::CountedTensor> micro_batch_spans(const spec::Job& job,
                                                                 const spec::Phase& phase);

/// Micro-batches of a phase, or of one of its mini-batches; for packed sequences the maximum.
[[nodiscard]] std::int64_t micro_batches(const spec::Job& job, const spec::Phase& phase);

/// host(shape, dtype) creates a tensor in host memory.
template <class T, class Host>
class PhaseInputs {
 public:
  /// `smaller` are packed micro-batches that are counted in addition to the largest ones.
  PhaseInputs(const spec::Job& job, const step::KernelProfile& profile, const Host& host,
              std::vector<step::PackedSize> smaller = {})
      : job_(job),
        profile_(profile),
        host_(host),
        smaller_(std::move(smaller)),
        width_(job.max_sequence_length()),
        response_(job.data.max_response_length) {}

  /// Inputs of a phase that runs a model of this shape, on one context-parallel rank. They have
  /// every tensor that a body may read; optional tensors only if the job has them.
  [[nodiscard]] step::Experience<T> experience(const spec::Architecture& shape,
                                               const spec::Phase& phase,
                                               std::int64_t context_rank = 0) const {
    std::int64_t mini_batches = 1;
    if (phase.trains()) {
      const spec::UpdateShape update = spec::update_shape(job_, phase.body);
      mini_batches = update.rows / update.mini_batch;
    }
    step::Experience<T> out;
    spec::Batching batching = spec::batching_of(job_, phase);
    // The micro-batches that a stage keeps at the same time.
    const spec::PipelineStage& stage = shape.pipeline;
    if (phase.trains() && stage.stages > 1)
      batching.together = step::micro_batches_kept(step::shape_of(stage), stage.stage);
    out.sequences = sequences(shape, batching, mini_batches, job_.context_shard(phase.model));
    if (out.sequences.packed) out.sequences.packed->context.rank = context_rank;
    const std::int64_t n = out.sequences.size();
    const T per_token = floats({n, response_});
    for (T* t :
         {&out.old_log_probs, &out.ref_log_probs, &out.values, &out.advantages, &out.returns})
      *t = per_token;
    if (job_.algorithm.rollout_correction.weighs_batch()) out.rollout_weights = per_token;
    if (spec::draws_tokens(job_.actor.loss_mode)) out.noise = per_token;
    out.margins = floats({std::max<std::int64_t>(1, n / 2)});
    out.reference_sums = floats({n});
    return out;
  }

 private:
  [[nodiscard]] T longs(const step::Shape& s) const { return host_(s, step::Dtype::kInt64); }
  [[nodiscard]] T floats(const step::Shape& s) const { return host_(s, step::Dtype::kFloat32); }
  [[nodiscard]] step::Sequences<T> padded(std::int64_t n) const {
    return {longs({n, width_}),
            longs({n, response_}),
            longs({n, response_}),
            floats({n, response_}),
            longs({n}),
            longs({n})};
  }
  /// `mini_batches` mini-batches with the phase's rows, or representative ones if they are packed.
  [[nodiscard]] step::Sequences<T> sequences(const spec::Architecture& shape,
                                             const spec::Batching& batching,
                                             std::int64_t mini_batches,
                                             const spec::ContextShard& context) const {
    if (batching.tokens == 0)
      return padded(mini_batches * batching.most_rows * batching.sequences_of_row);
    const step::SequenceLimits limits{width_, response_, batching.sequences_of_row};
    const auto packing = step::PackingLimits::of(batching.tokens, batching.most_rows, limits);
    const std::int64_t ranks = context.ranks;
    const std::vector<std::int64_t> further =
        further_sequences(profile_, shape, packing, limits, ranks);
    const step::PackedLayout layout = step::extreme_layout(
        batching.most_rows, batching.tokens, limits, {further, smaller_, batching.together, ranks});
    step::Sequences<T> all = padded(std::ssize(layout.starts) - 1);
    const std::int64_t tokens = layout.starts.back();
    const std::int64_t counted = layout.counts.back();
    all.packed = {
        longs({tokens}),  longs({tokens}),
        longs({counted}), longs({counted}),
        longs({counted}), longs({all.size()}),
        layout.lengths,   layout.starts,
        layout.counts,    step::Cuts(static_cast<std::size_t>(mini_batches), layout.micro_batches)};
    if (ranks == 1) return all;
    // As if this rank had every last token.
    all.packed->context = context;
    all.packed->last_places = longs({all.size()});
    for (std::int64_t i = 0; i <= all.size(); ++i) all.packed->last_counts.push_back(i);
    return all;
  }

  const spec::Job& job_;
  const step::KernelProfile& profile_;
  const Host& host_;
  std::vector<step::PackedSize> smaller_;
  std::int64_t width_, response_;
};

}  // namespace neap::plan
