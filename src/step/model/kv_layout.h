// The layout of the KV cache of generated sequences.
//
// A generation gives each sequence a row. A layout is a class that knows where the tokens of a row
// are stored. The passes of transformer.h give it the heads of each block, and rollout/ reports
// when rows start, grow, move and end. No other code accesses cached keys or values. A layout is a
// class with the members of KvLayout: SlotCache, or PagedCache (paged_cache.h).
//
// H query heads and K key heads of size D.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "step/attention/attention.h"
#include "step/attention/decoding.h"
#include "step/model/page_table.h"
#include "step/operations/operations.h"

namespace neap::step {

/// Some tokens of a prompt.
struct PromptChunk {
  std::vector<std::int64_t> rows;  ///< of the sequences that start with the prompt
  std::int64_t first = 0;  ///< position of the chunk's first token; earlier tokens are stored
};

/// The rows of a pass's prompts: of the sequences that start with each; `width`: tokens of a prompt.
struct PromptRows {
  std::vector<std::vector<std::int64_t>> of_prompt;
  std::int64_t width = 0;
};

template <class L, class Ops, class T = typename Ops::Tensor>
concept KvLayout = requires(L& mutable_layout, const L& layout, const typename L::Step& step,
                            const typename L::Prompts& prompts, const typename L::Chunk& places,
                            Ops& ops, const spec::Architecture& architecture,
                            const PromptRows& prompt_rows, const RowStart& sequence,
                            const PromptChunk& chunk, const T& tensor, Heads<T> heads,
                            const Rotation<T>& rotation, const ScoreOptions& options,
                            const KeyLimit& limit, std::int64_t n, std::size_t block) {
  // The number of rows, and of tokens per row.
  { layout.rows() } -> std::convertible_to<std::int64_t>;
  { layout.max_tokens() } -> std::convertible_to<std::int64_t>;
  // Precedes the first sequence.
  mutable_layout.clear(ops);
  // Starts a sequence in row n. Returns how many of its first tokens are stored already. Unset: it
  // has to wait until another one ends.
  { mutable_layout.start(n, sequence) } -> std::same_as<std::optional<std::int64_t>>;
  // Makes room for n tokens in row n, if there is any.
  { mutable_layout.grow(n, n) } -> std::same_as<bool>;
  mutable_layout.end(n);
  // Moves the sequence of a row, with its first tokens, to another row.
  mutable_layout.move(ops, n, n, n);
  // Makes the places of rows known to the device. Precedes decoding.
  mutable_layout.update(ops);
  // Whole prompts, B' of them. rows (J, B') int64: the same rows; one may be repeated. Computes
  // once what all blocks need.
  { layout.prompts(ops, tensor, prompt_rows) } -> std::same_as<typename L::Prompts>;
  // Stores heads (B' * width) as the first tokens of the rows.
  layout.store_prompts(ops, block, prompts, heads);
  // The same of the n tokens of a chunk.
  { layout.chunk(ops, chunk, n) } -> std::same_as<typename L::Chunk>;
  // Stores the heads (n) of a chunk, and attends to them and to earlier tokens.
  { layout.attend_chunk(ops, block, places, heads, options) } -> std::same_as<AttentionContext<T>>;
  // One token for each of the first B rows, at `positions` (B,). `limit` is a host bound on
  // max(positions) + 1. Computes once what all blocks need.
  {
    layout.step(ops, architecture, tensor, limit, Dtype::kFloat32)
    } -> std::same_as<typename L::Step>;
  // Rotates and stores the heads (B), then attends: (B, H * D).
  { layout.attend_token(ops, block, step, heads, rotation, options) } -> std::same_as<T>;
};

/// Slots of one length: the token at position p of row b is at [b, :, p, :].
template <class T>
struct SlotCache {
  std::vector<T> keys, values;  // one per block, each (B, K, T_max, D)

  [[nodiscard]] std::int64_t rows() const { return keys.at(0).size(0); }
  [[nodiscard]] std::int64_t max_tokens() const { return keys.at(0).size(2); }

  /// Zeroes the cache: attention gives hidden positions the weight zero, but zero times a NaN in a
  /// recycled page is NaN.
  template <class Ops>
  void clear(Ops& ops) {
    for (const std::vector<T>* tensors : {&keys, &values}) {
      for (const T& t : *tensors) ops.zero_(t);
    }
  }
  /// A slot has room for every sequence.
  [[nodiscard]] std::optional<std::int64_t> start(std::int64_t, const RowStart&) { return 0; }
  [[nodiscard]] bool grow(std::int64_t, std::int64_t) { return true; }
  void end(std::int64_t) {}
  template <class Ops>
  void move(Ops& ops, std::int64_t from, std::int64_t to, std::int64_t tokens) {
    for (const std::vector<T>* tensors : {&keys, &values}) {
      for (const T& t : *tensors)
        ops.copy_(places(ops, t, to, 0, tokens), places(ops, t, from, 0, tokens));
    }
  }

  template <class Ops>
  void update(Ops&) {}

  struct Prompts {
    T rows;  // (J, B') int64
    std::int64_t width = 0;
  };
  template <class Ops>
  Prompts prompts(Ops& ops, const T& rows, const PromptRows& of) const {
    return {ops.to_device(rows), of.width};
  }
  template <class Ops>
  void store_prompts(Ops& ops, std::size_t block, const Prompts& to, const Heads<T>& heads) const {
    for (std::int64_t j = 0; j < to.rows.size(0); ++j) {
      ops.write_prompts_(keys[block], ops.select(to.rows, 0, j), heads.k, to.width);
      ops.write_prompts_(values[block], ops.select(to.rows, 0, j), heads.v, to.width);
    }
  }

  using Chunk = PromptChunk;
  template <class Ops>
  Chunk chunk(Ops&, const PromptChunk& chunk, std::int64_t) const {
    return chunk;
  }
  template <class Ops>
  AttentionContext<T> attend_chunk(Ops& ops, std::size_t block, const Chunk& chunk, Heads<T> heads,
                                   const ScoreOptions& options) const {
    const std::int64_t n = heads.q.size(0);
    for (const std::int64_t row : chunk.rows) {
      ops.copy_(places(ops, keys[block], row, chunk.first, n), by_key_head(ops, heads.k));
      ops.copy_(places(ops, values[block], row, chunk.first, n), by_key_head(ops, heads.v));
    }
    if (chunk.first == 0) return ops.attention(std::move(heads), Spans<T>{1, n}, options);
    heads.k = T();
    heads.v = T();
    const auto seen = [&](const T& cache) {  // (1, K, first + n, D)
      return ops.narrow(ops.narrow(cache, 0, chunk.rows[0], 1), 2, 0, chunk.first + n);
    };
    AttentionContext<T> context;
    context.out = ops.chunk_attention(heads.q, seen(keys[block]), seen(values[block]), options);
    return context;
  }

  struct Step {
    T positions;                // (B,) int64
    KeyLimit limit;             // of keys
    bool own_kernel = false;    // Neap's kernel stores the token and attends
    DecodeKeys<T> all, window;  // for libtorch's
  };
  template <class Ops>
  Step step(Ops& ops, const spec::Architecture& a, const T& positions, const KeyLimit& limit,
            Dtype) const {
    const DecodeSizes sizes{positions.size(0), a.num_attention_heads, a.num_key_value_heads,
                            a.head_dim, limit.rounded};
    if (ops.attends_itself(ops.dtype(keys.at(0)), sizes, score_options(a, 0)))
      return {positions, limit, true, {}, {}};
    const auto seen = [&](std::int64_t window) {
      ScoreOptions options = score_options(a, 0);
      options.window = window;
      DecodeKeys<T> out =
          ops.decode_keys(positions, keys.at(0), a.num_attention_heads, limit.rounded, options);
      out.read = limit.keys;
      return out;
    };
    DecodeKeys<T> all = seen(0);
    const std::int64_t window = a.sliding_window;
    DecodeKeys<T> last = window > 0 && window < limit.rounded ? seen(window) : all;
    return {positions, limit, false, std::move(all), std::move(last)};
  }
  template <class Ops>
  T attend_token(Ops& ops, std::size_t block, const Step& step, const Heads<T>& heads,
                 const Rotation<T>& rotation, const ScoreOptions& options) const {
    T q = heads.q;
    if (step.own_kernel)
      return ops.append_and_attend_(keys[block], values[block], step.positions, heads, rotation,
                                    step.limit, options);
    if (ops.own_kernels(ops.dtype(q))) {
      q = ops.append_(keys[block], values[block], step.positions, heads, rotation);
    } else {
      ops.write_token_(keys[block], step.positions, heads.k);
      ops.write_token_(values[block], step.positions, heads.v);
    }
    return ops.decode_attention(q, keys[block], values[block],
                                options.window > 0 ? step.window : step.all, options);
  }

 private:
  /// Tokens [first, first + count) of a slot: (K, count, D).
  template <class Ops>
  static T places(Ops& ops, const T& cache, std::int64_t row, std::int64_t first,
                  std::int64_t count) {
    return ops.narrow(ops.select(cache, 0, row), 1, first, count);
  }
  /// x (N, K, D) -> (K, N, D).
  template <class Ops>
  static T by_key_head(Ops& ops, const T& x) {
    return ops.select(ops.by_head(x, 1), 0, 0);
  }
};

}  // namespace neap::step
