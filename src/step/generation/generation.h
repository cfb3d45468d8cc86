// The body of a generation: executes actions (generation_schedule.h) over operations.
//
// A GenerationSource provides actions, prompts and random numbers, and receives tokens. In a run,
// the source has data, and its next actions depend on the tokens (rollout/generation.h). In a plan,
// the source has a fixed list of actions (plan/counting/counted_source.h).
//
// B rows of the cache, S sequences of B' prompts.
#pragma once

#include <concepts>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "step/generation/decode_graphs.h"
#include "step/generation/generation_schedule.h"
#include "step/generation/sampling.h"
#include "step/model/paged_cache.h"
#include "step/model/transformer.h"

namespace neap::step {

template <class Ops, class T = typename Ops::Tensor>
Draw<T> on_device(Ops& ops, const Draw<T>& draw, const SamplingOptions& sampling) {
  Draw<T> here{ops.to_device(draw.uniforms), {}, {}};
  if (sampling.penalizes()) {
    here.seen = ops.to_device(draw.seen);
    here.amounts = ops.to_device(draw.amounts);
  }
  return here;
}

/// The next tokens after hidden states (B, C), on the device; `draw` is on the host.
template <class Ops, class T = typename Ops::Tensor>
Sampled<T> sampled(Ops& ops, const Weights<T>& w, const T& hidden, const SamplingOptions& sampling,
                   const Draw<T>& draw) {
  return next_tokens(ops, w, hidden, sampling, on_device(ops, draw, sampling));
}

/// The data to start sequences of some prompts; all on the host, int64.
template <class T>
struct PromptBatch {
  T tokens;   // (B', T), padded on the right
  T lengths;  // (B',)
  T rows;     // (J, B'): rows of the cache, for J sequences of each prompt; a row may be repeated
  T prompts;  // (S,): the prompt of each sequence that gets a token
};

/// Prefills each prompt once for all of its sequences, and samples their first tokens. `draw`, for
/// S sequences, is on the host.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> prefill_and_sample(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations,
                              const PromptBatch<T>& batch, const PromptRows& rows,
                              const Draw<T>& draw, const Cache& cache,
                              const SamplingOptions& sampling) {
  T hidden = prefill(ops, w, rotations, ops.to_device(batch.tokens), ops.to_device(batch.lengths),
                     cache.prompts(ops, batch.rows, rows), cache);
  if (batch.prompts.size(0) != hidden.size(0))
    hidden = ops.take_rows(hidden, ops.to_device(batch.prompts));
  return sampled(ops, w, hidden, sampling, draw);
}

/// A chunk of one prompt, on the host, int64.
template <class T>
struct ChunkBatch {
  T tokens;   // (count,)
  T prompts;  // (S,): 0 for each sequence of the prompt
};

/// Copies it from the host to the device.
template <class Ops, class T = typename Ops::Tensor>
DecodeRows<T> on_device(Ops& ops, const DecodeRows<T>& rows) {
  return {ops.to_device(rows.tokens), ops.to_device(rows.positions), ops.to_device(rows.advance)};
}

/// The limit of keys that a step's kernels get.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
KeyLimit limit_of(Ops& ops, const Weights<T>& w, const Cache& cache, std::int64_t keys) {
  const bool flash = decodes_by_flash(w.architecture, ops.cuda(), ops.dtype(any_weight(w)));
  return key_limit(keys, cache.max_tokens(), flash);
}

/// Queues the steps of an action. Returns the next tokens of its rows: (B,) for one step, (steps, B)
/// for several. `rows` become those of the step after them.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> decode_and_sample(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations,
                             DecodeRows<T>& rows, const Draw<T>& draw, const Cache& cache,
                             const DecodeStep& action, const SamplingOptions& sampling) {
  const auto next = [&](std::int64_t step, const auto& draw_here) {
    const T hidden = decode(ops, w, rotations, rows.tokens, rows.positions, cache,
                            limit_of(ops, w, cache, action.key_limit + step));
    const Draw<T> here = draw_here();
    Sampled<T> out = next_tokens(ops, w, hidden, sampling, here);
    rows.tokens = ops.view(out.tokens, {-1});
    ops.add_(rows.positions, rows.advance);
    return out;
  };
  if (action.steps == 1) return next(0, [&] { return on_device(ops, draw, sampling); });
  const Draw<T> all_here = on_device(ops, draw, sampling);
  const Shape all{action.steps, action.rows};
  Sampled<T> out{ops.empty(all, Dtype::kInt64), T()};
  if (sampling.log_probs) out.log_probs = ops.empty(all, wide(ops.dtype(any_weight(w))));
  ops.repeat(action.steps, [&](std::int64_t step) {
    const Sampled<T> one = next(step, [&]() -> Draw<T> {
      return {ops.select(all_here.uniforms, 0, step), all_here.seen, all_here.amounts};
    });
    ops.copy_(ops.select(out.tokens, 0, step), rows.tokens);
    if (one.log_probs.defined()) ops.copy_(ops.select(out.log_probs, 0, step), one.log_probs);
  });
  return out;
}

/// The same in graphs. Steps with the same rows and limit of keys use the same graph.
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
Sampled<T> decode_in_graphs(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations,
                            const DecodeState<T>& all, const Draw<T>& draw, const Cache& cache,
                            const DecodeStep& action, const SamplingOptions& sampling) {
  const DecodeState<T> state = first_rows(ops, all, action.rows);
  const DecodeRows<T>& rows = state.rows;
  const Shape shape{action.steps, action.rows};
  const T uniforms = ops.view(ops.to_device(draw.uniforms), shape);
  Sampled<T> out{ops.empty(shape, Dtype::kInt64), T()};
  if (state.log_probs.defined()) out.log_probs = ops.empty(shape, ops.dtype(state.log_probs));
  ops.repeat(action.steps, [&](std::int64_t step) {
    const KeyLimit limit = limit_of(ops, w, cache, action.key_limit + step);
    const auto next = [&] {
      const T hidden = decode(ops, w, rotations, rows.tokens, rows.positions, cache, limit);
      (void)next_tokens(ops, w, hidden, sampling, Draw<T>{state.uniforms, {}, {}},
                        Sampled<T>{rows.tokens, state.log_probs});
      ops.add_(rows.positions, rows.advance);
    };
    ops.one_token([&] {
      ops.copy_(state.uniforms, ops.select(uniforms, 0, step));
      ops.graphed(GraphKey{action.rows, limit.rounded}, next);
      ops.copy_(ops.select(out.tokens, 0, step), rows.tokens);
      if (out.log_probs.defined()) ops.copy_(ops.select(out.log_probs, 0, step), state.log_probs);
    });
  });
  return out;
}

template <class S, class T>
concept GenerationSource = requires(S& source, const PrefillPrompts& prompts,
                                    const PrefillChunk& chunk, std::int64_t n, std::int64_t m,
                                    const std::vector<std::int64_t>& rows,
                                    const std::vector<std::size_t>& sequences,
                                    const Sampled<T>& next) {
  { source.sampling() } -> std::convertible_to<const SamplingOptions&>;
  // Null: the generation has ended.
  { source.next() } -> std::same_as<const GenerationAction*>;
  // All on the host.
  { source.prompts(prompts) } -> std::same_as<PromptBatch<T>>;
  { source.chunk(chunk) } -> std::same_as<ChunkBatch<T>>;
  // The last tokens of the first n rows. Where tokens are taken late, only their positions are used.
  { source.decode_rows(n) } -> std::same_as<DecodeRows<T>>;
  // Random numbers for the next n tokens of each row; m: width of the penalties' inputs.
  { source.draw(rows, n, m) } -> std::same_as<Draw<T>>;
  // The sequences of some rows.
  { source.sequences(rows) } -> std::same_as<std::vector<std::size_t>>;
  // The next tokens of each of the sequences, on the host.
  source.take(sequences, next);
};

/// Executes actions one after another. On the host or with penalties, the source takes the tokens of an action
/// before the next action. Otherwise it takes them once the device has the next action that makes tokens, so
/// that the device does not wait for the host. Rows that end go on until then. The order depends only on the
/// actions.
template <class Ops, KvLayout<Ops> Cache, GenerationSource<typename Ops::Tensor> Source>
class GenerationBody {
  using T = typename Ops::Tensor;

 public:
  GenerationBody(Ops& ops, const Weights<T>& w, Cache& cache, Source& source)
      : ops_(ops),
        w_(w),
        cache_(cache),
        source_(source),
        rotations_(make_rotations(ops, w.architecture, cache.max_tokens())) {
    const Dtype dtype = ops.dtype(any_weight(w));
    const SamplingOptions& sampling = source.sampling();
    if (reads_late(ops.cuda(), sampling)) last_ = ops.zeros({cache.rows()}, Dtype::kInt64);
    if (decodes_in_graphs(ops, w.architecture, dtype, sampling))
      state_ = make_decode_state(ops, last_, dtype, sampling.log_probs);
  }

  void operator()(const ClearCache&) { cache_.clear(ops_); }
  void operator()(const PrefillPrompts& action) {
    decoded_.reset();
    const Draw<T> draw = source_.draw(action.rows, 1, action.width);
    const PromptRows rows{action.rows_by_prompt(), action.width};
    start(action.rows, prefill_and_sample(ops_, w_, rotations_, source_.prompts(action), rows, draw,
                                          cache_, source_.sampling()));
  }
  void operator()(const PrefillChunk& action) {
    decoded_.reset();
    const ChunkBatch<T> batch = source_.chunk(action);
    hidden_ = T();
    hidden_ = prefill_chunk(ops_, w_, rotations_, ops_.to_device(batch.tokens),
                            {action.rows, action.first}, cache_);
    if (action.last) sample_first(action, batch.prompts);
  }
  void operator()(const DecodeStep& action) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(action.rows));
    std::iota(rows.begin(), rows.end(), 0);
    cache_.update(ops_);
    if (!decoded_) decoded_ = placed(source_.decode_rows(action.rows), action.rows);
    const Draw<T> draw = source_.draw(rows, action.steps, action.key_limit);
    if (state_)
      return deliver(rows, decode_in_graphs(ops_, w_, rotations_, *state_, draw, cache_, action,
                                            source_.sampling()));
    const Sampled<T> next = decode_and_sample(ops_, w_, rotations_, *decoded_, draw, cache_, action,
                                              source_.sampling());
    if (last_.defined()) {
      const T last = ops_.narrow(last_, 0, 0, action.rows);
      ops_.copy_(last, decoded_->tokens);
      decoded_->tokens = last;
    }
    deliver(rows, next);
  }
  void operator()(const MoveRow& action) {
    decoded_.reset();
    cache_.move(ops_, action.from, action.to, action.tokens);
    if (last_.defined())
      ops_.copy_(ops_.narrow(last_, 0, action.to, 1), ops_.narrow(last_, 0, action.from, 1));
  }
  void operator()(const EndRow& action) {
    decoded_.reset();
    cache_.end(action.row);
  }
  void operator()(const ReadTokens&) { finish(); }
  /// The source takes all tokens that are left.
  void finish() {
    if (!unread_) return;
    const Unread unread = *std::exchange(unread_, std::nullopt);
    ops_.wait_for(unread.copied);
    source_.take(unread.sequences, unread.next);
  }

 private:
  /// Tokens that the device copies to the host.
  struct Unread {
    std::vector<std::size_t> sequences;
    Sampled<T> next;  // on the host
    typename Ops::Mark copied;
  };

  /// Copies the rows of the next step to the device; for graphs to their state.
  DecodeRows<T> placed(const DecodeRows<T>& from, std::int64_t count) {
    if (!last_.defined()) return on_device(ops_, from);
    const DecodeRows<T> now{ops_.narrow(last_, 0, 0, count), ops_.to_device(from.positions),
                            ops_.to_device(from.advance)};
    if (!state_) return now;
    const DecodeRows<T> to = first_rows(ops_, *state_, count).rows;
    ops_.copy_(to.positions, now.positions);
    ops_.copy_(to.advance, now.advance);
    return to;
  }
  /// Starts to decode rows, in ascending order, after their first tokens.
  void start(const std::vector<std::int64_t>& rows, const Sampled<T>& first) {
    const std::int64_t all = last_.defined() ? std::ssize(rows) : 0;
    for (std::int64_t i = 0, n = 0; i < all; i += n) {  // n adjacent rows
      const auto row = [&](std::int64_t at) { return rows[static_cast<std::size_t>(at)]; };
      for (n = 1; i + n < all && row(i + n) == row(i) + n;) ++n;
      ops_.copy_(ops_.narrow(last_, 0, row(i), n),
                 ops_.narrow(ops_.view(first.tokens, {-1}), 0, i, n));
    }
    deliver(rows, first);
  }
  /// The source takes tokens, or those of the action before.
  void deliver(const std::vector<std::int64_t>& rows, const Sampled<T>& next) {
    const auto copy = [&](const T& t) {
      if (!t.defined()) return T();
      return last_.defined() ? ops_.to_host_later(t) : ops_.to_host(t);
    };
    Unread now{source_.sequences(rows), {copy(next.tokens), copy(next.log_probs)}, ops_.mark()};
    finish();
    unread_ = std::move(now);
    if (!last_.defined()) finish();
  }
  /// Samples the first tokens of a prompt's sequences from its last hidden state.
  void sample_first(const PrefillChunk& action, const T& prompts) {
    T hidden = std::exchange(hidden_, T());
    if (std::ssize(action.rows) > 1) hidden = ops_.take_rows(hidden, ops_.to_device(prompts));
    const Draw<T> draw = source_.draw(action.rows, 1, action.width);
    start(action.rows, sampled(ops_, w_, hidden, source_.sampling(), draw));
  }

  Ops& ops_;
  const Weights<T>& w_;
  Cache& cache_;
  Source& source_;
  Rotations<T> rotations_;
  // (rows,) int64: the last token of each row, on the device; undefined: the source takes tokens at once
  T last_;
  std::optional<DecodeState<T>> state_;   // for graphs
  T hidden_;                              // (1, C) of the last chunk
  std::optional<DecodeRows<T>> decoded_;  // on the device; unset once a row starts, moves or ends
  std::optional<Unread> unread_;
};

/// Executes all actions of a source.
template <class Ops, KvLayout<Ops> Cache, class Source, class T = typename Ops::Tensor>
void run_generation(Ops& ops, const Weights<T>& w, Cache& cache, Source& source) {
  GenerationBody<Ops, Cache, Source> body(ops, w, cache, source);
  while (const GenerationAction* action = source.next()) std::visit(body, *action);
  body.finish();
}

}  // namespace neap::step
