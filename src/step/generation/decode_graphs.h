// Decoding in CUDA graphs: whether a step can be one, and its state.
//
// A graph has the kernels of a step with their arguments. The host replays it with one call instead
// of hundreds. So a step's tensors keep their addresses during a generation, and no operation of a
// step waits for the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "step/attention/decoding.h"
#include "step/counting/scratch_places.h"
#include "step/generation/sampling.h"

namespace neap::step {

/// The part of the graphs' tag that holds a step's tensors.
inline constexpr std::string_view kGraphScratchPart = "scratch";
/// Maximum number of graphs that a generation keeps: the most recently used ones.
inline constexpr std::size_t kMostGraphs = 8;
/// Driver memory per kernel of a graph (H100; bench/results/engine-graphs-h100.jsonl).
inline constexpr std::uint64_t kGraphNodeBytes = 4 << 10;

/// Calls visit(key) for every graph of a cache's first `rows` rows with `tokens` each.
template <class Visit>
void for_each_graph(std::int64_t rows, std::int64_t tokens, const Visit& visit) {
  for (std::int64_t n = 1;; n = std::min(2 * n, rows)) {
    for (std::int64_t limit = 0; limit < tokens;) {
      limit = key_limit(limit + 1, tokens, /*flash=*/true).rounded;
      visit(GraphKey{n, limit});
    }
    if (n == rows) return;
  }
}

/// The conditions for graphs, other than the architecture.
struct GraphConditions {
  bool cuda = false;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t tensor_ranks = 1;
  SamplingOptions sampling{};
};

/// Why a decoding step cannot be a graph; empty: it can.
[[nodiscard]] inline std::string_view no_graphs_reason(const spec::Architecture& a,
                                                       const GraphConditions& c) {
  if (!c.cuda) return "the device is not a GPU";
  if (c.tensor_ranks > 1) return "tensor-parallel ranks exchange sums in a step";
  if (c.sampling.penalizes()) return "penalties need each token on the host";
  if (!decodes_by_flash(a, c.cuda, c.dtype))
    return "FlashAttention does not decode this model in its type";
  return {};
}
/// The same for operations that may make graphs.
template <class Ops>
[[nodiscard]] bool decodes_in_graphs(const Ops& ops, const spec::Architecture& a, Dtype dtype,
                                     const SamplingOptions& sampling) {
  return ops.graphs() &&
         no_graphs_reason(a, {ops.cuda(), dtype, ops.ranks(spec::Axis::kTensor), sampling}).empty();
}

/// The input of the next decoding step: (B,) int64 each.
template <class T>
struct DecodeRows {
  T tokens;     // the last token of each row
  T positions;  // the position of that token
  T advance;    // 1, or 0 for an idle row, whose position stays within the cache
};

/// The tensors that a graph reads and writes, for the first B rows of a cache.
template <class T>
struct DecodeState {
  DecodeRows<T> rows;
  T uniforms;   // (B,) float32
  T log_probs;  // (B,), wide; undefined unless requested
};
/// `tokens`: the last token of each row.
template <class Ops, class T = typename Ops::Tensor>
DecodeState<T> make_decode_state(Ops& ops, const T& tokens, Dtype dtype, bool log_probs) {
  const std::int64_t rows = tokens.size(0);
  const auto longs = [&] { return ops.empty({rows}, Dtype::kInt64); };
  DecodeState<T> state{{tokens, longs(), longs()}, ops.empty({rows}, Dtype::kFloat32), T()};
  if (log_probs) state.log_probs = ops.empty({rows}, wide(dtype));
  return state;
}
/// Its first rows, at the same addresses.
template <class Ops, class T>
DecodeState<T> first_rows(Ops& ops, const DecodeState<T>& all, std::int64_t rows) {
  const auto of = [&](const T& t) { return t.defined() ? ops.narrow(t, 0, 0, rows) : T(); };
  return {{of(all.rows.tokens), of(all.rows.positions), of(all.rows.advance)},
          of(all.uniforms),
          of(all.log_probs)};
}

}  // namespace neap::step
