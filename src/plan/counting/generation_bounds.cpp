#include "plan/counting/generation_bounds.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step/generation/decode_graphs.h"
#include "step/model/page_table.h"
#include "step/operations/shape.h"

namespace neap::plan {
namespace {

using step::GenerationAction;

/// Equal batches that are decoded one after another.
struct Batches {
  double times = 1;        // number of batches
  std::int64_t batch = 1;  // sequences decoded together
  std::int64_t n = 1;      // responses per prompt
  step::SamplingOptions sampling;
  bool waits = false;  // more sequences may be waiting, which start as others end
};

class Bounds {
 public:
  Bounds(const spec::Job& job, bool cuda, bool graphs, std::int64_t most_decode_steps,
         const GenerationVisitor& visitor)
      : cuda_(cuda),
        graphs_(graphs),
        cache_(step::cache_shape(job)),
        prefill_(job.prefill()),
        prompt_(job.data.max_prompt_length),
        response_(job.data.max_response_length),
        most_decode_steps_(most_decode_steps),
        visitor_(visitor) {}

  void add(const Batches& b) const {
    const std::int64_t prompts = std::min(prefill_.prompts, step::div_up(b.batch, b.n));
    const double passes = static_cast<double>(b.batch) / static_cast<double>(started(b, prompts));
    visitor_.visit({prefill(b, prompts), b.sampling, b.times * passes});
    const std::int64_t steps = std::min(response_ - 1, most_decode_steps_);
    const double each = static_cast<double>(response_ - 1) / static_cast<double>(steps);
    const std::int64_t rows = rows_to_decode(b.batch);
    const std::int64_t together = sequences_with_pages(b);
    const double turns = static_cast<double>(b.batch) / static_cast<double>(together);
    const std::int64_t read = std::min(response_ - 1, step::steps_of_a_read(cuda_, b.sampling));
    const std::int64_t counted = graphs_ ? read : 1;  // with graphs, a read has work of its own
    for (std::int64_t i = 1; i <= steps; ++i) {
      const std::int64_t last = prompt_ + (response_ - 1) * i / steps;
      const std::int64_t limit = std::max<std::int64_t>(1, last - counted + 1);
      visitor_.visit({{step::DecodeStep{rows_to_decode(together), limit, counted}},
                      b.sampling,
                      b.times * turns * each / static_cast<double>(counted)});
    }
    // While sequences are short, all rows have pages.
    if (together < b.batch) {
      const std::int64_t last = prompt_ + response_ - counted;
      visitor_.visit({{step::DecodeStep{rows, last, counted}}, b.sampling, 0});
    }
    // Counts the memory of tokens that are read together. The time of a step is the same.
    if (read > 1) {
      const std::int64_t first = prompt_ + response_ - read;
      visitor_.visit({{step::DecodeStep{rows, first, read}}, b.sampling, 0});
    }
    if (graphs_)  // counts the memory of all graphs that a run may make
      step::for_each_graph(rows, cache_.row_tokens, [&](const step::GraphKey& key) {
        visitor_.visit({{step::DecodeStep{key.rows, key.key_limit}}, b.sampling, 0});
      });
    visitor_.aside([&] { add_smaller(b, prompts); });
  }

 private:
  [[nodiscard]] bool in_chunks() const { return prefill_.tokens < prompt_; }
  /// The number of the longest sequences that have pages together; those of a prompt share its pages.
  [[nodiscard]] std::int64_t sequences_with_pages(const Batches& b) const {
    if (!cache_.paged()) return b.batch;
    const std::int64_t shared = prompt_ / step::kPageTokens;
    const std::int64_t of_prompt = shared + b.n * (cache_.row_pages() - shared);
    return std::clamp<std::int64_t>(cache_.pages * b.n / of_prompt, 1, b.batch);
  }
  [[nodiscard]] std::int64_t rows_to_decode(std::int64_t sequences) const {
    return cuda_ ? step::decode_bucket(sequences, cache_.rows) : sequences;
  }
  [[nodiscard]] static std::int64_t started(const Batches& b, std::int64_t prompts) {
    return std::min(b.batch, prompts * b.n);
  }
  [[nodiscard]] static std::vector<std::int64_t> rows(std::int64_t n) {
    std::vector<std::int64_t> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  [[nodiscard]] step::PrefillChunk chunk(const Batches& b) const {
    step::PrefillChunk out;
    out.width = prompt_;
    out.rows = rows(started(b, 1));
    return out;
  }
  /// Prefills `prompts` together with all their sequences, or one prompt in chunks. `gone`
  /// sequences of the first prompt have already started.
  [[nodiscard]] std::vector<GenerationAction> prefill(const Batches& b, std::int64_t prompts,
                                                      std::int64_t gone = 0) const {
    std::vector<GenerationAction> out;
    if (in_chunks()) {
      step::append_chunks(out, chunk(b), prompt_, prefill_.tokens);
      return out;
    }
    step::PrefillPrompts all;
    all.width = prompt_;
    all.lengths.assign(static_cast<std::size_t>(prompts), prompt_);
    all.rows = rows(started(b, prompts));
    for (const std::int64_t row : all.rows) all.prompts.push_back((row + gone) / b.n);
    out.emplace_back(std::move(all));
    return out;
  }

  /// Passes with fewer rows as sequences end, fewer prompts as they start one after another, and
  /// shorter chunks. Their tensors are smaller. But a pool keeps segments for the largest use of
  /// its small and of its large tensors, which may be in different passes.
  void add_smaller(const Batches& b, std::int64_t prompts) const {
    const auto visit = [&](std::vector<GenerationAction> actions) {
      visitor_.visit({std::move(actions), b.sampling});
    };
    const std::int64_t longest = prompt_ + response_ - 1;
    if (cuda_) {
      for (std::int64_t n = 1; n < rows_to_decode(b.batch); n *= 2)
        visit({step::DecodeStep{n, longest}});
      // The kernel of attention depends on the limit of keys.
      if (!graphs_)
        step::for_each_graph(
            rows_to_decode(b.batch), cache_.row_tokens, [&](const step::GraphKey& key) {
              visit({step::DecodeStep{key.rows, std::min(key.key_limit, longest)}});
            });
    } else {
      for_smaller(b.batch, [&](std::int64_t n) { visit({step::DecodeStep{n, longest}}); });
    }
    if (in_chunks()) {
      for_smaller(prefill_.tokens, [&](std::int64_t n) {
        step::PrefillChunk some = chunk(b);
        some.first = prompt_ - n;
        some.count = n;
        visit({std::move(some)});
      });
    } else if (b.waits) {
      // If all rows become free at once, the first may take the last sequence of a prompt.
      const std::int64_t most = 1 + step::div_up(b.batch - 1, b.n);
      if (most > prompts && most <= prefill_.prompts) visit(prefill(b, most, b.n - 1));
      for_smaller(prompts, [&](std::int64_t some) { visit(prefill(b, some)); });
    }
    if (cache_.paged()) {
      add_resumed(b);
      add_late(b);
    }
    // Sampling fewer tokens may take more scratch. Decoding on a GPU does not show it: it has few numbers of rows, or
    // graphs.
    const std::int64_t most = started(b, in_chunks() ? 1 : prompts);
    if (cuda_ && (b.waits || most < b.batch))
      for_smaller(most, [&](std::int64_t n) { visit(start(b, n)); });
  }
  /// A sequence that has waited for pages is prefilled again, in chunks.
  void add_resumed(const Batches& b) const {
    const std::int64_t tokens = prompt_ + response_ - 1;
    const auto visit = [&](std::int64_t count) {
      step::PrefillChunk all;
      all.width = tokens;
      all.first = tokens - count;
      all.count = count;
      all.last = true;
      all.rows = {0};
      visitor_.visit({{std::move(all)}, b.sampling});
    };
    const std::int64_t most = std::min(prefill_.of_pass(), tokens);
    visit(most);
    for_smaller(most, visit);
  }
  /// Sequences that start while others have their prompt's full pages compute the rest of it.
  void add_late(const Batches& b) const {
    const std::int64_t first = prompt_ / step::kPageTokens * step::kPageTokens;
    if (b.n == 1 || first == 0) return;
    const auto visit = [&](std::int64_t count, std::int64_t sequences) {
      step::PrefillChunk rest = chunk(b);
      rest.first = prompt_ - count;
      rest.count = count;
      rest.last = true;
      rest.rows = rows(sequences);
      visitor_.visit({{std::move(rest)}, b.sampling});
    };
    const std::int64_t all = started(b, 1);
    const std::int64_t most = std::min({step::kPageTokens, prompt_, prefill_.tokens});
    for (std::int64_t count = 1; count <= most; ++count) visit(count, all);
    for_smaller(all, [&](std::int64_t n) { visit(1, n); });
  }
  /// The pass that starts `n` sequences.
  [[nodiscard]] std::vector<GenerationAction> start(const Batches& b, std::int64_t n) const {
    if (!in_chunks()) {
      step::PrefillPrompts some;
      some.width = prompt_;
      some.lengths.assign(static_cast<std::size_t>(step::div_up(n, b.n)), prompt_);
      some.rows = rows(n);
      for (const std::int64_t row : some.rows) some.prompts.push_back(row / b.n);
      return {std::move(some)};
    }
    step::PrefillChunk last = chunk(b);
    last.first = prompt_ - 1;
    last.count = 1;
    last.last = true;
    last.rows = rows(n);
    return {std::move(last)};
  }
  template <class Visit>
  static void for_smaller(std::int64_t size, const Visit& visit) {
    constexpr std::int64_t kMostSizes = 256;
    const std::int64_t step = step::div_up(size, kMostSizes);
    for (std::int64_t n = size - step; n > 0; n -= step) visit(n);
  }

  bool cuda_, graphs_;
  step::CacheShape cache_;
  spec::PrefillShape prefill_;
  std::int64_t prompt_, response_, most_decode_steps_;
  const GenerationVisitor& visitor_;
};

}  // namespace

void for_each_generation_pass(const spec::Job& job, const spec::Phase& phase, bool cuda,
                              std::int64_t most_decode_steps, const GenerationVisitor& visitor) {
  const Bounds bounds(job, cuda, phase.graphs, most_decode_steps, visitor);
  const spec::Batching batching = spec::batching_of(job, phase);
  const std::int64_t responses = batching.most_rows, batch = batching.rows;
  const double batches = static_cast<double>(responses) / static_cast<double>(batch);
  const spec::ValidationSampling& validation = job.rollout.val_kwargs;
  Batches held_out{batches, batch, validation.n, step::sampling_options(validation), true};
  if (job.task == spec::Task::kEval) return bounds.add(held_out);
  // Validation also uses this phase, outside of steps, and may take more memory.
  const bool validates = !job.data.val_files.empty() && !phase.baseline;
  Batches b{batches, batch, job.rollout.n, step::sampling_options(job.rollout),
            validates || responses > batch};
  if (phase.baseline) {
    b.n = 1;
    b.sampling = step::greedy_sampling();
  }
  b.sampling.log_probs = !phase.baseline && job.keeps_rollout_log_probs();
  bounds.add(b);
  const bool sorts = step::needs_order(held_out.sampling) && !step::needs_order(b.sampling);
  held_out.times = 0;
  if (validates && (sorts || held_out.n > b.n)) bounds.add(held_out);
}

}  // namespace neap::plan
