// A KV cache in pages (page_table.h): a row takes memory as its sequence grows.
//
// The page table is on the host. The device has a copy at a fixed address, so that CUDA graphs stay
// valid. Neap's kernel reads and writes pages through it. For other kernels the pages of all rows
// are gathered, block after block, into one tensor of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "step/model/kv_layout.h"

namespace neap::step {

/// Why a model's cache cannot be paged; empty: it can.
[[nodiscard]] inline std::string_view no_pages_reason(const spec::Architecture& a, bool cuda,
                                                      Dtype dtype, const OwnKernels& own) {
  if (!cuda || (own.take(dtype) && decodes_by_flash(a, cuda, dtype))) return {};
  return "Neap's attention kernel does not decode this model in its type on this GPU";
}

template <class T>
class PagedCache {
 public:
  PagedCache() = default;
  /// keys and values: one per block, each (pages + 1, K, kPageTokens, D). table: (rows, pages of
  /// the longest row) int64, for the place of each page's first row of D.
  PagedCache(std::vector<T> keys, std::vector<T> values, T table, const CacheShape& shape)
      : keys_(std::move(keys)),
        values_(std::move(values)),
        table_(std::move(table)),
        pages_(shape),
        shape_(shape) {}

  [[nodiscard]] std::int64_t rows() const { return shape_.rows; }
  [[nodiscard]] std::int64_t max_tokens() const { return shape_.row_tokens; }
  [[nodiscard]] const PageTable& pages() const { return pages_; }

  /// Frees all pages and sets them to zero.
  template <class Ops>
  void clear(Ops& ops) {
    pages_ = PageTable(shape_);
    for (const std::vector<T>* tensors : {&keys_, &values_}) {
      for (const T& t : *tensors) ops.zero_(t);
    }
  }
  [[nodiscard]] std::optional<std::int64_t> start(std::int64_t row, const RowStart& sequence) {
    return pages_.start(row, sequence);
  }
  [[nodiscard]] bool grow(std::int64_t row, std::int64_t tokens) {
    return pages_.grow(row, tokens);
  }
  void end(std::int64_t row) { pages_.end(row); }
  template <class Ops>
  void move(Ops&, std::int64_t from, std::int64_t to, std::int64_t) {
    pages_.move(from, to);
  }
  template <class Ops>
  void update(Ops& ops) {
    if (!pages_.take_change()) return;
    std::vector<std::int64_t> places = pages_.table();
    for (std::int64_t& page : places) page *= key_heads() * kPageTokens;
    ops.put_numbers_(table_, places);
  }

  struct Prompts {
    T places;    // (N, K): where the tokens of each prompt's first row are written
    T from, to;  // (n,): the pages with the prompts' last tokens, and those of further rows
  };
  template <class Ops>
  Prompts prompts(Ops& ops, const T&, const PromptRows& rows) const {
    std::vector<std::int64_t> places;
    for (const std::vector<std::int64_t>& of_prompt : rows.of_prompt)
      add_places(places, of_prompt.front(), 0, rows.width);
    Prompts out = copies(ops, rows.of_prompt);
    out.places = ops.view(ops.from_host(places), {-1, key_heads()});
    return out;
  }
  template <class Ops>
  void store_prompts(Ops& ops, std::size_t block, const Prompts& to, const Heads<T>& heads) const {
    store(ops, keys_[block], to, heads.k);
    store(ops, values_[block], to, heads.v);
  }

  struct Chunk {
    Prompts to;
    T parts;                 // (n,): the heads' pages of the first row; undefined: first chunk
    std::int64_t first = 0;  // position of the chunk's first token
  };
  template <class Ops>
  Chunk chunk(Ops& ops, const PromptChunk& chunk, std::int64_t count) const {
    std::vector<std::int64_t> places;
    add_places(places, chunk.rows[0], chunk.first, count);
    Chunk out{copies(ops, {chunk.rows}), T(), chunk.first};
    out.to.places = ops.view(ops.from_host(places), {-1, key_heads()});
    if (chunk.first == 0) return out;
    std::vector<std::int64_t> parts;
    for (std::int64_t head = 0; head < key_heads(); ++head) {
      for (std::int64_t i = 0; i < pages_of(chunk.first + count); ++i)
        parts.push_back(pages_.page(chunk.rows[0], i) * key_heads() + head);
    }
    out.parts = ops.from_host(parts);
    return out;
  }
  template <class Ops>
  AttentionContext<T> attend_chunk(Ops& ops, std::size_t block, const Chunk& chunk, Heads<T> heads,
                                   const ScoreOptions& options) const {
    const std::int64_t n = heads.q.size(0);
    store_prompts(ops, block, chunk.to, heads);
    if (chunk.first == 0) return ops.attention(std::move(heads), Spans<T>{1, n}, options);
    heads.k = T();
    heads.v = T();
    const auto seen = [&](const T& cache) {  // (1, K, first + n, D)
      return ops.narrow(gathered(ops, cache, chunk.parts, 1), 2, 0, chunk.first + n);
    };
    const T keys = seen(keys_[block]), values = seen(values_[block]);
    AttentionContext<T> context;
    context.out = ops.chunk_attention(heads.q, keys, values, options);
    return context;
  }

  struct Step {
    T positions;                // (B,) int64
    KeyLimit limit;             // of keys
    T table;                    // (B, pages of a row) for Neap's kernel
    T places, parts;            // for others: of the new tokens (B, K), and of all pages (n,)
    DecodeKeys<T> all, window;  // for others
  };
  template <class Ops>
  Step step(Ops& ops, const spec::Architecture& a, const T& positions, const KeyLimit& limit,
            Dtype dtype) const {
    const std::int64_t rows = positions.size(0);
    const T table = ops.narrow(table_, 0, 0, rows);
    Step out{positions, limit, T(), T(), T(), {}, {}};
    if (ops.own_kernels(dtype) && ops.cuda()) {
      out.table = table;
      return out;
    }
    out.places = ops.page_places(table, positions, key_heads());
    out.parts = ops.page_parts(ops.narrow(table, 1, 0, pages_of(limit.rounded)), key_heads());
    const auto seen = [&](std::int64_t window) {
      DecodeKeys<T> keys;
      keys.limit = limit.rounded;
      keys.read = limit.keys;
      keys.mask = ops.decode_mask(positions, limit.rounded, window, dtype);
      return keys;
    };
    out.all = seen(0);
    const std::int64_t window = a.sliding_window;
    out.window = window > 0 && window < limit.rounded ? seen(window) : out.all;
    return out;
  }
  template <class Ops>
  T attend_token(Ops& ops, std::size_t block, const Step& step, const Heads<T>& heads,
                 const Rotation<T>& rotation, const ScoreOptions& options) const {
    if (step.table.defined())
      return ops.append_and_attend_pages_({keys_[block], values_[block], step.table},
                                          step.positions, heads, rotation, step.limit, options);
    ops.put_heads_(by_token(ops, keys_[block]), step.places, heads.k);
    ops.put_heads_(by_token(ops, values_[block]), step.places, heads.v);
    const std::int64_t rows = heads.q.size(0);
    const T keys = gathered(ops, keys_[block], step.parts, rows);
    const T values = gathered(ops, values_[block], step.parts, rows);
    return ops.decode_attention(heads.q, keys, values, options.window > 0 ? step.window : step.all,
                                options);
  }

 private:
  [[nodiscard]] std::int64_t key_heads() const { return keys_.at(0).size(1); }
  /// Appends the places of tokens [first, first + count) of a row: of each key head's row of D.
  void add_places(std::vector<std::int64_t>& to, std::int64_t row, std::int64_t first,
                  std::int64_t count) const {
    for (std::int64_t token = first; token < first + count; ++token) {
      const std::int64_t page = pages_.written_page(row, token / kPageTokens);
      for (std::int64_t head = 0; head < key_heads(); ++head)
        to.push_back((page * key_heads() + head) * kPageTokens + token % kPageTokens);
    }
  }
  /// Further rows of a prompt share the pages that it fills, and get a copy of its last page.
  template <class Ops>
  Prompts copies(Ops& ops, const std::vector<std::vector<std::int64_t>>& rows) const {
    std::vector<std::int64_t> from, to;
    for (const std::vector<std::int64_t>& of_prompt : rows) {
      for (std::size_t i = 1; i < of_prompt.size(); ++i) {
        from.push_back(pages_.last_prompt_page(of_prompt[0]));
        to.push_back(pages_.last_prompt_page(of_prompt[i]));
      }
    }
    if (from.empty()) return {};
    return {T(), ops.from_host(from), ops.from_host(to)};
  }
  template <class Ops>
  void store(Ops& ops, const T& cache, const Prompts& to, const T& heads) const {
    ops.put_heads_(by_token(ops, cache), to.places, heads);
    if (!to.from.defined()) return;
    const T pages = ops.view(cache, {cache.size(0), -1});
    ops.put_rows_(pages, to.to, ops.take_rows(pages, to.from));
  }
  /// (places, D)
  template <class Ops>
  static T by_token(Ops& ops, const T& cache) {
    return ops.view(cache, {-1, cache.size(3)});
  }
  /// The pages of some rows as slots: (B, K, tokens, D).
  template <class Ops>
  static T gathered(Ops& ops, const T& cache, const T& parts, std::int64_t rows) {
    const std::int64_t heads = cache.size(1), width = cache.size(3);
    const T of_heads = ops.view(cache, {cache.size(0) * heads, -1});
    return ops.view(ops.take_rows(of_heads, parts), {rows, heads, -1, width});
  }

  std::vector<T> keys_, values_;
  T table_;
  PageTable pages_;
  CacheShape shape_;
};

template <class T>
using AnyCache = std::variant<SlotCache<T>, PagedCache<T>>;

}  // namespace neap::step
