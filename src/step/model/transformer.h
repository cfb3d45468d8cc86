// Passes over a whole model: forward, training forward and backward, prefill and decoding.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "step/attention/context_calls.h"
#include "step/model/block.h"
#include "step/model/embedding.h"
#include "step/model/head.h"
#include "step/model/kv_layout.h"
#include "step/model/rotation.h"
#include "step/units/gradient_norm.h"
#include "step/units/units.h"

namespace neap::step {

/// The state that forward_train keeps for backward.
template <class T>
struct Tape {
  T tokens;  // (N,) int64
  Rows<T> rows;
  std::vector<SavedBlock<T>> blocks;
  // (N, C): output of the last block, before the final norm; (n, C) on a stage before the last
  T hidden;
};

/// Tokens of a batch, and how they form sequences.
template <class T>
struct BatchTokens {
  T tokens;  // (N,) int64
  Spans<T> spans;
  T positions;  // packed: (N,) int64; undefined: 0 .. length - 1 in each sequence
};
/// Sequences of `length` tokens, one after another: tokens (N,).
template <class T>
BatchTokens<T> of_one_length(const T& tokens, std::int64_t length) {
  return {tokens, {tokens.size(0) / length, length}, {}};
}

template <class Ops, class T = typename Ops::Tensor>
Rows<T> rows_of_batch(Ops& ops, const Weights<T>& w, const BatchTokens<T>& batch) {
  const std::int64_t length = batch.spans.length;
  const Rotations<T> rotations = make_rotations(ops, w.architecture, length);
  Rows<T> rows = make_rows(ops, ops.dtype(any_weight(w)), with_places(ops, batch.spans),
                           batch.spans.packed() ? batch.positions : ops.iota(length), rotations);
  if (w.architecture.tensor.divides_rows) rows.divided = batch.tokens.size(0);
  return rows;
}

/// Whether the adapters of all blocks have the same shapes.
template <class T>
bool adapters_alike(const Weights<T>& w) {
  const auto same = [](const Linear<T>* a, const Linear<T>* b) {
    if (!a->lora_a.defined() || !b->lora_a.defined())
      return a->lora_a.defined() == b->lora_a.defined();
    return a->lora_a.size(0) == b->lora_a.size(0);
  };
  return std::all_of(w.blocks.begin(), w.blocks.end(), [&](const Block<T>& block) {
    const auto a = linears_of(block), b = linears_of(w.blocks.front());
    return std::equal(a.begin(), a.end(), b.begin(), same);
  });
}

/// Calls each(i, block) for every block of a range. Blocks that keep nothing have the same cost if
/// their layers and adapters are equal.
template <class Ops, class T, class Each>
void for_each_block(Ops& ops, const Weights<T>& w, const spec::BlockRange& range,
                    const Each& each) {
  const auto block = [&](std::int64_t number) {
    const auto i = static_cast<std::size_t>(range.first + number);
    const UsedBlock<T> used(w, i);
    each(i, *used);
  };
  const bool uses_alike = w.source == nullptr || w.source->uses_alike();
  if (w.architecture.layers_alike() && adapters_alike(w) && uses_alike) {
    ops.repeat(range.count, block);
  } else {
    for (std::int64_t i = 0; i < range.count; ++i) block(i);
  }
}
/// Passes x (N, C) through every block with each(i, block, x).
template <class Ops, class T, class Each>
T through_blocks(Ops& ops, const Weights<T>& w, T x, const Each& each) {
  for_each_block(ops, w, {0, std::ssize(w.blocks)},
                 [&](std::size_t i, const Block<T>& block) { x = each(i, block, std::move(x)); });
  return x;
}

/// The last block's output of each batch, in the order of forward_train: (N, C), or (n, C) if no
/// head follows. Keeps nothing. `inputs` are those of the chunk's first block, if that is not the
/// embedding.
template <class Ops, class T = typename Ops::Tensor>
std::vector<T> forward(Ops& ops, const Weights<T>& w, const std::vector<BatchTokens<T>>& batches,
                       const spec::BlockChunk& chunk, std::vector<T> inputs = {}) {
  std::vector<Rows<T>> rows;
  std::vector<T> x = std::move(inputs);
  {
    std::optional<UsedTable<T>> table;
    if (chunk.embeds) table.emplace(w, Table::kEmbedding);
    for (const BatchTokens<T>& batch : batches) {
      rows.push_back(rows_of_batch(ops, w, batch));
      if (chunk.embeds) x.push_back(embed(ops, w, batch.tokens, rows.back()));
    }
  }
  for_each_block(ops, w, chunk.blocks, [&](std::size_t, const Block<T>& block) {
    for (std::size_t b = 0; b < batches.size(); ++b) {
      x[b] = block_inference(ops, w.architecture, block, std::move(x[b]), rows[b],
                             [&](Heads<T> heads) {
                               return ops.attention(std::move(heads), rows[b].spans,
                                                    score_options(w.architecture, block.index));
                             });
    }
  });
  if (chunk.has_head)
    for (std::size_t b = 0; b < batches.size(); ++b) x[b] = tokens_of_all(ops, rows[b], x[b]);
  return x;
}
/// For one batch, and a model without stages.
template <class Ops, class T = typename Ops::Tensor>
T forward(Ops& ops, const Weights<T>& w, const BatchTokens<T>& batch) {
  return std::move(forward(ops, w, std::vector<BatchTokens<T>>{batch}, w.architecture.chunk(0))[0]);
}

/// Passes every batch through a block before the next block, so that an offloaded or sharded block
/// is loaded once. Keeps what `checkpointing` says for each block; blocks that it does not list
/// keep everything. Returns one tape per batch. `inputs` are those of the chunk's first block, if
/// that is not the embedding.
template <class Ops, class T = typename Ops::Tensor>
std::vector<Tape<T>> forward_train(Ops& ops, const Weights<T>& w,
                                   const std::vector<BatchTokens<T>>& batches,
                                   const spec::Checkpointing& checkpointing,
                                   const spec::BlockChunk& chunk, std::vector<T> inputs = {}) {
  std::vector<Tape<T>> tapes(batches.size());
  std::int64_t rows = 0;
  for (const BatchTokens<T>& batch : batches)
    rows += w.architecture.tensor.rows_of(batch.tokens.size(0));
  if (w.source != nullptr) w.source->begin_group(rows);
  std::optional<UsedTable<T>> table;
  if (chunk.embeds) table.emplace(w, Table::kEmbedding);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    Tape<T>& tape = tapes[b];
    tape.tokens = batches[b].tokens;
    tape.rows = rows_of_batch(ops, w, batches[b]);
    tape.blocks.reserve(static_cast<std::size_t>(chunk.blocks.count));
    tape.hidden = chunk.embeds ? embed(ops, w, tape.tokens, tape.rows) : std::move(inputs[b]);
  }
  table.reset();
  const auto begin = static_cast<std::size_t>(chunk.blocks.first);
  const std::size_t end = begin + static_cast<std::size_t>(chunk.blocks.count);
  for (std::size_t i = begin; i < end; ++i) {
    const UsedBlock<T> block(w, i, BlockUse::kKeepInputs);
    std::int64_t first = 0;
    for (Tape<T>& tape : tapes) {
      SavedBlock<T>& saved = tape.blocks.emplace_back();
      if (i < checkpointing.blocks.size()) saved.retention = checkpointing.blocks[i];
      tape.hidden =
          block_forward(ops, w.architecture, *block, std::move(tape.hidden), tape.rows, saved);
      const std::int64_t count = w.architecture.tensor.rows_of(tape.tokens.size(0));
      if (const T elsewhere = block.inputs(first, count); elsewhere.defined()) {
        ops.copy_(elsewhere, saved.input);
        saved.input = T();
      }
      first += count;
    }
  }
  if (chunk.has_head)
    for (Tape<T>& tape : tapes) tape.hidden = tokens_of_all(ops, tape.rows, tape.hidden);
  return tapes;
}
/// For a model without stages.
template <class Ops, class T = typename Ops::Tensor>
std::vector<Tape<T>> forward_train(Ops& ops, const Weights<T>& w,
                                   const std::vector<BatchTokens<T>>& batches,
                                   const spec::Checkpointing& checkpointing) {
  return forward_train(ops, w, batches, checkpointing, w.architecture.chunk(0));
}
/// For one batch.
template <class Ops, class T = typename Ops::Tensor>
Tape<T> forward_train(Ops& ops, const Weights<T>& w, const BatchTokens<T>& batch,
                      const spec::Checkpointing& checkpointing) {
  return std::move(forward_train(ops, w, std::vector<BatchTokens<T>>{batch}, checkpointing)[0]);
}

/// Backward through the chunk's blocks, from the gradients d of each tape's hidden state, in the
/// order of the tapes. d becomes the gradient of the first block's input. Adds the gradients of
/// trained parameters; with `later`, defers them for add_blocks_gradients(), from the last block to
/// the first.
template <class Ops, class T = typename Ops::Tensor>
void blocks_backward(Ops& ops, const Weights<T>& w, const spec::BlockChunk& chunk,
                     std::vector<Tape<T>>& tapes, std::vector<T>& d,
                     std::vector<GradientQueue<T>>* later = nullptr) {
  for (std::size_t b = 0; b < tapes.size(); ++b) {
    tapes[b].hidden = T();
    if (chunk.has_head) d[b] = own_rows(ops, tapes[b].rows, std::move(d[b]));
  }
  const auto begin = static_cast<std::size_t>(chunk.blocks.first);
  for (std::size_t i = begin + static_cast<std::size_t>(chunk.blocks.count); i-- > begin;) {
    UsedBlock<T> block(w, i, later == nullptr ? BlockUse::kAddGradients : BlockUse::kReadBack);
    GradientQueue<T>* queue = nullptr;
    if (later == nullptr) {
      block.gradients().begin(ops);
    } else {
      queue = &later->emplace_back();
      queue->keeps_norms = gradients_leave(w);
    }
    std::int64_t first = 0;
    for (std::size_t b = 0; b < tapes.size(); ++b) {
      SavedBlock<T> saved = std::move(tapes[b].blocks.back());
      tapes[b].blocks.pop_back();
      const std::int64_t count = w.architecture.tensor.rows_of(tapes[b].tokens.size(0));
      if (!saved.input.defined()) {
        saved.input = block.inputs(first, count);
        // Deferred products read it when another block uses this memory.
        if (later != nullptr && !w.architecture.placement.before)
          saved.input = ops.clone(saved.input);
      }
      first += count;
      d[b] = block_backward(ops, w.architecture, *block, std::move(saved), std::move(d[b]),
                            tapes[b].rows, queue);
    }
    if (later != nullptr) continue;
    block.gradients().end([&](UnitKey unit, const T& gradients) {
      return complete_gradients(ops, w, unit, gradients);
    });
  }
}
/// Computes the gradients that blocks_backward deferred for a chunk. Does not read the blocks'
/// weights.
template <class Ops, class T = typename Ops::Tensor>
void add_blocks_gradients(Ops& ops, const Weights<T>& w, const spec::BlockChunk& chunk,
                          std::vector<GradientQueue<T>> later) {
  if (brings_gradients(w)) expect_passes(w, Sweep::kBackwardWeights, 1, chunk);
  for (std::size_t i = 0; i < later.size(); ++i) {
    const auto last = static_cast<std::size_t>(chunk.blocks.first + chunk.blocks.count - 1);
    const UsedBlock<T> block(w, last - i, BlockUse::kAddLater);
    block.gradients().begin(ops);
    add_later_gradients(ops, std::move(later[i]));
    block.gradients().end([&](UnitKey unit, const T& gradients) {
      return complete_gradients(ops, w, unit, gradients);
    });
  }
}
/// Runs add(), which adds to the gradients of the embedding while they are on the device.
template <class Ops, class T, class Add>
void with_embedding_gradients(Ops& ops, const Weights<T>& w, const Add& add) {
  const UsedTable<T> table(w, Table::kEmbedding, BlockUse::kAddGradients);
  table.gradients().begin(ops);
  add();
  table.gradients().end([&](UnitKey unit, const T& gradients) {
    return complete_gradients(ops, w, unit, gradients);
  });
}
/// As blocks_backward, followed by the embedding. Consumes its arguments.
template <class Ops, class T = typename Ops::Tensor>
void backward(Ops& ops, const Weights<T>& w, std::vector<Tape<T>> tapes, std::vector<T> d) {
  blocks_backward(ops, w, w.architecture.chunk(0), tapes, d);
  with_embedding_gradients(ops, w, [&] {
    for (std::size_t b = 0; b < tapes.size(); ++b)
      embed_backward(ops, w, tapes[b].tokens, tapes[b].rows, std::move(d[b]));
  });
}
/// For one tape.
template <class Ops, class T = typename Ops::Tensor>
void backward(Ops& ops, const Weights<T>& w, Tape<T> tape, T d) {
  std::vector<Tape<T>> tapes;
  tapes.push_back(std::move(tape));
  std::vector<T> gradients;
  gradients.push_back(std::move(d));
  backward(ops, w, std::move(tapes), std::move(gradients));
}

/// Runs right-padded prompts, tokens (B', T) with `lengths` (B',) int64, and stores their keys and
/// values in the cache's `rows`. `rotations` of its tokens. Returns each prompt's last hidden state
/// (B', C).
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
T prefill(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations, const T& tokens,
          const T& lengths, const typename Cache::Prompts& rows, const Cache& cache) {
  const std::int64_t t = tokens.size(1);
  const T flat = ops.view(tokens, {-1});
  const Rows<T> places =
      make_rows(ops, ops.dtype(any_weight(w)), {tokens.size(0), t}, ops.iota(t), rotations);
  const auto attend = [&](std::size_t i, Heads<T> heads) {
    cache.store_prompts(ops, i, rows, heads);
    return ops.attention(std::move(heads), places.spans,
                         score_options(w.architecture, w.blocks[i].index));
  };
  const T x = ops.generating([&] {
    return through_blocks(
        ops, w, embed(ops, w, flat, places), [&](std::size_t i, const Block<T>& block, T in) {
          return block_inference(ops, w.architecture, block, std::move(in), places,
                                 [&](Heads<T> heads) { return attend(i, std::move(heads)); });
        });
  });
  const T last = ops.last_rows(lengths, t);  // (B',): b * T + lengths[b] - 1
  return ops.take_rows(x, last);
}

/// Runs the next tokens (n,) of a prompt. Returns the last one's hidden state (1, C).
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
T prefill_chunk(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations, const T& tokens,
                const PromptChunk& chunk, const Cache& cache) {
  const std::int64_t n = tokens.size(0);
  const Rows<T> places = make_rows(ops, ops.dtype(any_weight(w)), {1, n},
                                   ops.plus(ops.iota(n), chunk.first), rotations);
  const typename Cache::Chunk stored = cache.chunk(ops, chunk, n);
  const T x = ops.generating([&] {
    return through_blocks(
        ops, w, embed(ops, w, tokens, places), [&](std::size_t i, const Block<T>& block, T in) {
          const ScoreOptions options = score_options(w.architecture, block.index);
          return block_inference(
              ops, w.architecture, block, std::move(in), places, [&](Heads<T> heads) {
                return cache.attend_chunk(ops, i, stored, std::move(heads), options);
              });
        });
  });
  return ops.clone(ops.narrow(x, 0, n - 1, 1));
}

/// One token per sequence: tokens (B,) at positions (B,), int64. Row b attends to positions
/// 0..positions[b]. `limit` is a host bound on max(positions) + 1, so that nothing waits for
/// the device. Returns (B, C).
template <class Ops, KvLayout<Ops> Cache, class T = typename Ops::Tensor>
T decode(Ops& ops, const Weights<T>& w, const Rotations<T>& rotations, const T& tokens,
         const T& positions, const Cache& cache, const KeyLimit& limit) {
  const Dtype dtype = ops.dtype(any_weight(w));
  // Neap's kernel rotates heads where it stores them.
  const bool fused = ops.own_kernels(dtype);
  Rows<T> rows =
      make_rows(ops, dtype, {tokens.size(0), 1}, positions, fused ? Rotations<T>{} : rotations);
  rows.fused = fused;
  const typename Cache::Step step = cache.step(ops, w.architecture, positions, limit, dtype);
  const auto pass = [&] {
    return through_blocks(
        ops, w, embed(ops, w, tokens, rows), [&](std::size_t i, const Block<T>& block, T x) {
          const ScoreOptions options = score_options(w.architecture, block.index);
          return block_inference(
              ops, w.architecture, block, std::move(x), rows, [&](Heads<T> heads) {
                Rotation<T> rotation;
                if (fused) {
                  rotation = rotation_of(rotations, w.architecture, block.index);
                } else if (leaves_queries_apart(w.architecture, block.index)) {
                  heads.q = ops.clone(heads.q);
                }
                AttentionContext<T> context;
                context.out = cache.attend_token(ops, i, step, heads, rotation, options);
                return context;
              });
        });
  };
  return ops.one_token([&] { return ops.generating(pass); });
}

}  // namespace neap::step
