// The micro-batches of a phase, scoring and generation; training.h has losses, runner.h the phases.
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
#include "step/sampling.h"

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
  for_each_micro_batch(ops, inference_cuts(all, micro_size), [&](const MicroBatch& micro) {
    const DeviceBatch<Ops> batch(ops, all, micro.first, micro.count);
    const T hidden = forward(ops, w, batch.tokens());
    const LogProbs<T> out =
        log_probs(ops, w, hidden, batch.response_rows(), batch.targets(), options);
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
  for_each_micro_batch(ops, inference_cuts(all, micro_size), [&](const MicroBatch& micro) {
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

// ---- generation ----

/// The next tokens after hidden states (B, C), on the device; `draw` is on the host.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> sampled(Ops& ops, const Weights<T>& w, const T& hidden, const SamplingOptions& sampling,
                   const Draw<T>& draw) {
  Draw<T> here{ops.to_device(draw.uniforms), {}, {}};
  if (sampling.penalizes()) {
    here.seen = ops.to_device(draw.seen);
    here.amounts = ops.to_device(draw.amounts);
  }
  return sample(ops, logits(ops, w, hidden), sampling, here);
}

template <class Ops, class T = typename Ops::Tensor>
Sampled<T> on_host(Ops& ops, const Sampled<T>& s) {
  return {ops.to_host(s.tokens), s.log_probs.defined() ? ops.to_host(s.log_probs) : T()};
}

/// What starts the sequences of some prompts; all on the host, int64.
template <class T>
struct PromptBatch {
  T tokens;   // (B', T), padded on the right
  T lengths;  // (B',)
  T rows;     // (J, B'): of the cache, for J sequences of each prompt; one may come again
  T prompts;  // (S,): the prompt of each sequence that gets a token
};

/// Prefills each prompt once, for all of its sequences, and samples their first tokens, on the host.
/// `draw` of S sequences, on the host.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> prefill_and_sample(Ops& ops, const Weights<T>& w, const PromptBatch<T>& batch,
                              const Draw<T>& draw, const Cache& cache,
                              const SamplingOptions& sampling) {
  T hidden = prefill(ops, w, ops.to_device(batch.tokens), ops.to_device(batch.lengths),
                     ops.to_device(batch.rows), cache);
  if (batch.prompts.size(0) != hidden.size(0))
    hidden = ops.take_rows(hidden, ops.to_device(batch.prompts));
  return on_host(ops, sampled(ops, w, hidden, sampling, draw));
}

/// A prompt that is prefilled in parts.
template <class T>
struct LongPrompt {
  T tokens;                        // (L,) int64, on the host
  std::vector<std::int64_t> rows;  // of the sequences that start with it
  T prompts;                       // (S,) int64, on the host: 0 for each of these sequences
  std::int64_t chunk = 0;          // tokens of a pass
};

/// Its tokens [first, first + count): the last one's hidden state (1, C).
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
T prefill_part(Ops& ops, const Weights<T>& w, const LongPrompt<T>& prompt, std::int64_t first,
               std::int64_t count, const Cache& cache) {
  return prefill_chunk(ops, w, ops.to_device(ops.narrow(prompt.tokens, 0, first, count)),
                       {prompt.rows, first}, cache);
}

/// As above for one prompt, `chunk` tokens at a time: what a pass takes is bounded by them and by a
/// chunk of scores (attention.h), not by the prompt.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> prefill_in_chunks_and_sample(Ops& ops, const Weights<T>& w, const LongPrompt<T>& prompt,
                                        const Draw<T>& draw, const Cache& cache,
                                        const SamplingOptions& sampling) {
  const std::int64_t length = prompt.tokens.size(0);
  T hidden;
  for (std::int64_t first = 0; first < length; first += prompt.chunk) {
    hidden = T();
    hidden = prefill_part(ops, w, prompt, first, std::min(prompt.chunk, length - first), cache);
  }
  if (prompt.prompts.size(0) > 1) hidden = ops.take_rows(hidden, ops.to_device(prompt.prompts));
  return on_host(ops, sampled(ops, w, hidden, sampling, draw));
}

/// What the next decoding step starts from, on the device: (B,) int64 each.
template <class T>
struct DecodeRows {
  T tokens;     // the last one of each row
  T positions;  // its position
  T advance;    // 1, or 0 of an idle row: its position stays within the cache
};
template <class Ops, class T = typename Ops::Tensor>
DecodeRows<T> decode_rows(Ops& ops, const T& tokens, const T& positions, const T& advance) {
  return {ops.to_device(tokens), ops.to_device(positions), ops.to_device(advance)};
}

/// One decoding step: the next tokens (B,), on the host. `rows` are those of the step after it.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> decode_and_sample(Ops& ops, const Weights<T>& w, DecodeRows<T>& rows,
                             const Draw<T>& draw, const Cache& cache, std::int64_t key_limit,
                             const SamplingOptions& sampling) {
  const Sampled<T> next = sampled(
      ops, w, decode(ops, w, rows.tokens, rows.positions, cache, key_limit), sampling, draw);
  rows.tokens = ops.view(next.tokens, {-1});
  ops.add_(rows.positions, rows.advance);
  return on_host(ops, next);
}

}  // namespace neap::step
