// The passes of a job's generations as a plan counts them: of the longest prompts and responses, and
// smaller ones as sequences end.
//
// World gives operations, weights, a cache and host tensors; the plan's only count, and a test computes
// the same passes with libtorch.
//
// Cost   counting takes milliseconds: a few dozen steps of a long generation are run.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/tags.h"
#include "step/phases.h"

namespace neap::plan {

template <class World>
class GenerationPasses {
  using Ops = typename World::Ops;
  using T = typename Ops::Tensor;
  using Weights = step::Weights<T>;

 public:
  GenerationPasses(World& world, const spec::Job& job)
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

  /// All batches of a phase.
  void run(const ModelRole& role, const spec::Phase& phase, std::int64_t most_decode_steps) {
    const std::int64_t responses =
        phase.baseline ? job_.rows_per_rank() : job_.sequences_per_rank();
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

 private:
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

  World& world_;
  Ops& ops_;
  const spec::Job& job_;
  std::int64_t width_, response_;
};

}  // namespace neap::plan
