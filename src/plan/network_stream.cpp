#include "plan/network_stream.h"

#include <algorithm>
#include <utility>

namespace neap::plan {
namespace {

// src/model/network.h has the same number.
constexpr std::int64_t kMlpChunkElements = std::int64_t{1} << 25;

}  // namespace

NetworkStream::NetworkStream(TensorStream& stream, const ModelRole& role,
                             const Execution& execution)
    : s_(stream),
      role_(role),
      shape_(role.shape),
      e_(execution),
      linears_(spec::block_linears(role.shape)),
      c_(role.shape.hidden_size),
      f_(role.shape.intermediate_size),
      q_width_(role.shape.num_attention_heads * role.shape.head_dim),
      kv_width_(role.shape.num_key_value_heads * role.shape.head_dim) {
  down_ = linears_.size() - 1;
  up_ = linears_.size() - 2;
  out_ = fused_qkv() ? 1 : 3;
}

// ---- operations -----------------------------------------------------------------------------

NetworkStream::Positions NetworkStream::positions(std::int64_t count) {
  Positions p;
  p.positions = make_long(count);
  if (!rms()) return p;
  const std::int64_t half = shape_.head_dim / 2;
  const Temporary exponent = make_float(half);
  Temporary frequency = make_float(half);
  const Temporary as_float = make_float(count);
  const Temporary angle = make_float(count * half);
  Temporary cos = make_float(count * half);
  if (e_.width != 4) cos = make(count * half);
  Temporary sin = make_float(count * half);
  if (e_.width != 4) sin = make(count * half);
  p.cos = std::move(cos);
  p.sin = std::move(sin);
  return p;
}

Temporary NetworkStream::embed(std::int64_t rows, std::int64_t positions) {
  Temporary x = make(rows * shape_.embedding_dim());
  if (shape_.projects_embedding()) x = make(rows * c_);
  if (!rms()) {
    const Temporary where = make_long(positions);
    s_.touch(positions * c_, e_.width);
  }
  return x;
}

void NetworkStream::embed_backward(std::int64_t rows, std::int64_t positions) {
  if (!trains_base()) return;
  if (!rms()) {
    const Temporary by_position = make(positions * c_);
    const Temporary where = make_long(positions);
    if (widens()) s_.touch(positions * c_, kGradientWidth);
  }
  Temporary d;
  if (shape_.projects_embedding()) {
    const Temporary x = make(rows * shape_.embedding_dim());
    if (widens()) s_.touch(c_ * shape_.embedding_dim(), e_.width);
    d = make(rows * shape_.embedding_dim());
  }
  if (widens()) s_.touch(rows * shape_.embedding_dim(), kGradientWidth);
}

NetworkStream::Normed NetworkStream::norm(std::int64_t rows, std::int64_t width) {
  Normed n;
  if (!rms()) {
    n.y = make(rows * width);
    n.statistics = {make_float(rows), make_float(rows)};
  } else if (e_.cuda) {
    n.y = make(rows * width);
    n.statistics = {make_float(rows)};
  } else {
    n.statistics = {make_float(rows)};
    n.y = make_float(rows * width);
    if (e_.width != 4) n.y = make(rows * width);  // float32 inside, rounded at the end
  }
  return n;
}

Temporary NetworkStream::norm_backward(std::int64_t rows, std::int64_t width, bool trained) {
  if (!rms() || e_.cuda) {
    Temporary dx = make(rows * width);
    if (trained) {
      const Temporary gamma = make(width);
      const Temporary beta = rms() ? Temporary() : make(width);
      // Partial sums of the CPU kernel, one pair of rows a thread.
      if (!e_.cuda) s_.touch(2 * e_.threads * width, 4);
    }
    return dx;
  }
  const Temporary dy = e_.width == 4 ? Temporary() : make_float(rows * width);
  const Temporary x_hat = make_float(rows * width);
  if (trained) {
    const Temporary product = make_float(rows * width);
    s_.touch(width, 4);
  }
  Temporary dx = make_float(rows * width);
  Temporary inner;
  {
    const Temporary product = make_float(rows * width);
    inner = make_float(rows);
  }
  return e_.width == 4 ? dx : make(rows * width);
}

Temporary NetworkStream::linear(std::int64_t rows, std::size_t i) {
  const spec::Linear& l = linears_[i];
  Temporary y = make(rows * l.out);
  if (role_.lora.rank > 0 && role_.lora.covers(l)) s_.touch(rows * role_.lora.rank, e_.width);
  return y;
}

Temporary NetworkStream::linear_backward(std::int64_t rows, std::size_t i) {
  const spec::Linear& l = linears_[i];
  if (trains_base()) {
    if (widens()) s_.touch(l.in * l.out, e_.width);
    if (l.bias) {
      const Temporary sum = s_.make(l.out, kGradientWidth);
      // Measured on a GPU: a column sum that widens takes 8 bytes an element of what it sums.
      if (e_.cuda && widens()) s_.touch(rows * l.out, 8);
    }
  }
  Temporary dx = make(rows * l.in);
  const std::int64_t rank = role_.lora.rank;
  if (rank > 0 && role_.lora.covers(l)) {
    const Temporary dy_b = make(rows * rank);
    if (role_.trained) {
      if (widens()) s_.touch(rank * l.in, e_.width);
      const Temporary x_a = make(rows * rank);
      if (widens()) s_.touch(l.out * rank, e_.width);
    }
  }
  return dx;
}

NetworkStream::Heads NetworkStream::project(std::int64_t rows) {
  Heads h;
  if (fused_qkv()) {
    h.q = h.k = h.v = linear(rows, 0);
    return h;
  }
  h.q = linear(rows, 0);
  h.k = linear(rows, 1);
  h.v = linear(rows, 2);
  return h;
}

void NetworkStream::rotate(Temporary& t, std::int64_t elements) {
  t = make(elements);
}

Temporary NetworkStream::attend(std::int64_t sequences, std::int64_t length, BlockGraph* graph) {
  const std::int64_t rows = sequences * length;
  Heads heads = project(rows);
  if (rms()) {
    rotate(heads.q, rows * q_width_);
    rotate(heads.k, rows * kv_width_);
  }
  Temporary out;
  {
    Temporary k = heads.k;
    Temporary v = heads.v;
    if (grouped() && !e_.cuda) {  // repeat_interleave for the CPU kernel
      k = make(rows * q_width_);
      v = make(rows * q_width_);
    }
    out = make(rows * q_width_);
    const Temporary log_sum = make_float(rows * shape_.num_attention_heads);
    if (e_.cuda) {
      s_.touch(2, 8);  // seed and offset
    } else {
      // The CPU kernel's scratch: a tile of scores, maxima, sums and a tile of output a thread.
      const std::int64_t q_tile = std::min<std::int64_t>(length >= 768   ? 256
                                                         : length >= 192 ? 64
                                                                         : 32,
                                                         length);
      const std::int64_t kv_tile = std::min<std::int64_t>(512, length);
      s_.touch(e_.threads * q_tile * (kv_tile + 2 + shape_.head_dim), 4);
    }
    if (graph != nullptr) graph->attention = {heads.q, k, v, out, log_sum};
  }
  return linear(rows, out_);
}

Temporary NetworkStream::mlp(std::int64_t rows, BlockGraph* graph) {
  Temporary gate;
  Temporary up;
  if (gated()) gate = linear(rows, up_ - 1);
  up = linear(rows, up_);
  Temporary h;
  if (graph != nullptr) {
    h = make(rows * f_);
    graph->activation = {gate, up};
  }
  return linear(rows, down_);
}

Temporary NetworkStream::run_block(Temporary x, std::int64_t sequences, std::int64_t length,
                                   Mode mode, BlockGraph* graph) {
  const std::int64_t rows = sequences * length;
  if (graph != nullptr) graph->input = x;
  if (!shape_.norm_first) return run_post_norm_block(std::move(x), sequences, length, graph);
  {
    Normed n = norm(rows, c_);
    if (graph != nullptr) {
      graph->attention_norm = n.statistics;
      graph->h1 = n.y;
    }
    n.statistics.clear();
    const Temporary a = attend(sequences, length, graph);
    if (mode != Mode::kConsume) x = make(rows * c_);
  }
  if (mode == Mode::kConsume) {
    const std::int64_t step = std::max<std::int64_t>(1, kMlpChunkElements / f_);
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t n = std::min(step, rows - first);
      Normed h = norm(n, c_);
      h.statistics.clear();
      const Temporary y = mlp(n, nullptr);
    }
    return x;
  }
  Normed n = norm(rows, c_);
  if (graph != nullptr) {
    graph->middle = x;
    graph->mlp_norm = n.statistics;
    graph->h2 = n.y;
  }
  n.statistics.clear();
  const Temporary m = mlp(rows, graph);
  if (mode == Mode::kGraph) {
    x = make(rows * c_);
    graph->output = x;
  }
  return x;
}

// OPT-350m: attention and MLP read the block's input itself, norms follow the sums.
Temporary NetworkStream::run_post_norm_block(Temporary x, std::int64_t sequences,
                                             std::int64_t length, BlockGraph* graph) {
  const std::int64_t rows = sequences * length;
  {
    const Temporary a = attend(sequences, length, graph);
    const Temporary sum = make(rows * c_);
    const Normed n = norm(rows, c_);
    if (graph != nullptr) {
      graph->h1 = x;
      graph->middle = sum;
      graph->attention_norm = n.statistics;
    }
    x = n.y;
  }
  const Temporary m = mlp(rows, graph);
  const Temporary sum = make(rows * c_);
  const Normed n = norm(rows, c_);
  if (graph != nullptr) {
    graph->h2 = x;
    graph->mlp_norm = n.statistics;
    graph->mlp_norm.push_back(sum);
    graph->output = n.y;
  }
  return n.y;
}

// ---- gradients of a block, in the order of autograd's ready queue (last made, first run) --------

Temporary NetworkStream::mlp_backward(std::int64_t rows, BlockGraph& graph) {
  Temporary d_gate;
  Temporary d_up;
  {
    Temporary a = make(rows * f_);
    Temporary h = gated() ? make(rows * f_) : Temporary();
    Temporary dh = linear_backward(rows, down_);
    d_up = gated() ? h : Temporary();
    d_gate = make(rows * f_);
  }
  graph.activation.clear();
  if (!gated()) {
    Temporary dh = linear_backward(rows, up_);
    graph.h2.reset();
    return dh;
  }
  Temporary dh = linear_backward(rows, up_);
  d_up.reset();
  const Temporary more = linear_backward(rows, up_ - 1);  // added into dh
  graph.h2.reset();
  return dh;
}

Temporary NetworkStream::attention_backward(std::int64_t sequences, std::int64_t length,
                                            BlockGraph& graph) {
  const std::int64_t rows = sequences * length;
  Temporary d_out = linear_backward(rows, out_);
  Temporary dq = make(rows * q_width_);
  const std::int64_t kv_made = grouped() && !e_.cuda ? q_width_ : kv_width_;
  Temporary dk = make(rows * kv_made);
  Temporary dv = make(rows * kv_made);
  if (e_.cuda) {
    // Flash attention's backward: row sums of dO * O and a float32 accumulator of dQ, both over
    // lengths rounded up to its tile; grouped keys get one gradient a query head first.
    const std::int64_t padded = (length + 127) / 128 * 128;
    const Temporary sums = make_float(sequences * shape_.num_attention_heads * padded);
    // Deterministic, it adds in as many accumulators as keep all multiprocessors busy.
    const std::int64_t pairs = sequences * shape_.num_attention_heads;
    const std::int64_t splits = std::max<std::int64_t>(1, (e_.multiprocessors + pairs - 1) / pairs);
    const Temporary accumulator = make_float(splits * sequences * padded * q_width_);
    if (grouped()) {
      const Temporary dk_expanded = make(rows * q_width_);
      const Temporary dv_expanded = make(rows * q_width_);
    }
  } else {
    const std::int64_t q_tile = std::min<std::int64_t>(length >= 768   ? 256
                                                       : length >= 192 ? 64
                                                                       : 32,
                                                       length);
    const std::int64_t kv_tile = std::min<std::int64_t>(512, length);
    s_.touch(e_.threads * 2 * q_tile * kv_tile, 4);
  }
  d_out.reset();
  graph.attention.clear();
  if (kv_made != kv_width_) {  // sums over the repeats
    dv = make(rows * kv_width_);
    dk = make(rows * kv_width_);
  }
  if (fused_qkv()) {
    // A slice's gradient is the whole with zeros elsewhere; the three add up in place.
    Temporary whole = make(rows * 3 * c_);
    dv.reset();
    s_.touch(rows * 3 * c_, e_.width);
    dk.reset();
    s_.touch(rows * 3 * c_, e_.width);
    dq.reset();
    Temporary dh = linear_backward(rows, 0);
    graph.h1.reset();
    return dh;
  }
  if (rms()) {
    rotate(dk, rows * kv_width_);
    rotate(dq, rows * q_width_);
  }
  Temporary dh = linear_backward(rows, 2);
  dv.reset();
  { const Temporary more = linear_backward(rows, 1); }
  dk.reset();
  { const Temporary more = linear_backward(rows, 0); }
  dq.reset();
  graph.h1.reset();
  return dh;
}

Temporary NetworkStream::block_backward(BlockGraph graph, std::int64_t sequences,
                                        std::int64_t length) {
  const std::int64_t rows = sequences * length;
  if (!shape_.norm_first) {
    Temporary d_middle = norm_backward(rows, c_, trains_base());
    graph.mlp_norm.clear();
    { const Temporary dh = mlp_backward(rows, graph); }  // added into d_middle
    Temporary dx = norm_backward(rows, c_, trains_base());
    d_middle.reset();
    graph.middle.reset();
    graph.attention_norm.clear();
    const Temporary dh = attention_backward(sequences, length, graph);
    return dx;  // dh is added in place
  }
  Temporary sum;
  {
    Temporary dh = mlp_backward(rows, graph);
    Temporary dx = norm_backward(rows, c_, trains_base());
    dh.reset();
    graph.middle.reset();
    graph.mlp_norm.clear();
    sum = make(rows * c_);  // d is the caller's too, so this is not added in place
  }
  Temporary dh = attention_backward(sequences, length, graph);
  Temporary dx = norm_backward(rows, c_, trains_base());
  return sum;  // dx is added in place
}

// ---- walks ------------------------------------------------------------------------------------

Temporary NetworkStream::forward(std::int64_t sequences, std::int64_t length) {
  const Positions p = positions(length);
  Temporary x = embed(sequences * length, length);
  for (std::int64_t i = 0; i < shape_.num_hidden_layers; ++i)
    x = run_block(std::move(x), sequences, length, Mode::kConsume, nullptr);
  return x;
}

Temporary NetworkStream::prefill(std::int64_t sequences, std::int64_t length) {
  const Temporary x = forward(sequences, length);
  const Temporary last = make_long(sequences);
  return make(sequences * c_);
}

NetworkStream::Tape NetworkStream::forward_train(std::int64_t sequences, std::int64_t length) {
  Tape tape;
  tape.sequences = sequences;
  tape.length = length;
  Positions p = positions(length);
  tape.positions = p.positions;
  tape.rope_cos = p.cos;
  tape.rope_sin = p.sin;
  Temporary x = embed(sequences * length, length);
  for (std::int64_t i = 0; i < shape_.num_hidden_layers; ++i) {
    if (role_.checkpointing) {
      tape.inputs.push_back(x);
      x = run_block(std::move(x), sequences, length, Mode::kKeepInput, nullptr);
    } else {
      tape.graphs.emplace_back();
      x = run_block(std::move(x), sequences, length, Mode::kGraph, &tape.graphs.back());
    }
  }
  tape.hidden = std::move(x);
  return tape;
}

void NetworkStream::backward(Tape tape, Temporary d) {
  tape.hidden.reset();
  for (std::int64_t i = shape_.num_hidden_layers; i-- > 0;) {
    BlockGraph graph;
    if (role_.checkpointing) {
      Temporary input = std::move(tape.inputs.back());
      tape.inputs.pop_back();
      (void)run_block(std::move(input), tape.sequences, tape.length, Mode::kGraph, &graph);
    } else {
      graph = std::move(tape.graphs.back());
      tape.graphs.pop_back();
    }
    // The gradient that came in lives until the one that goes out is there.
    d = block_backward(std::move(graph), tape.sequences, tape.length);
  }
  embed_backward(tape.sequences * tape.length, tape.length);
}

Temporary NetworkStream::decode_block(Temporary x, std::int64_t sequences, std::int64_t limit) {
  {
    Normed n = shape_.norm_first ? norm(sequences, c_) : Normed{};
    n.statistics.clear();
    Heads heads = project(sequences);
    if (rms()) {
      rotate(heads.q, sequences * q_width_);
      rotate(heads.k, sequences * kv_width_);
    }
    Temporary out;
    {
      // The boolean mask becomes one of numbers.
      const std::int64_t group = shape_.num_attention_heads / shape_.num_key_value_heads;
      Temporary numbers = make(sequences * group * limit);
      s_.touch(sequences * group * limit, 1);
      out = make(sequences * q_width_);
      const Temporary log_sum = make_float(sequences * shape_.num_attention_heads);
    }
    if (grouped()) out = make(sequences * q_width_);  // heads back in their order
    const Temporary a = linear(sequences, out_);
  }
  if (!shape_.norm_first) {
    x = norm(sequences, c_).y;
    { const Temporary m = mlp(sequences, nullptr); }
    return norm(sequences, c_).y;
  }
  Normed n = norm(sequences, c_);
  n.statistics.clear();
  const Temporary m = mlp(sequences, nullptr);
  return x;
}

Temporary NetworkStream::decode(std::int64_t sequences, std::int64_t limit) {
  const Positions p = positions(sequences);
  const Temporary range = make_long(limit);
  const Temporary mask = s_.make(sequences * limit, 1);
  Temporary x = embed(sequences, sequences);
  for (std::int64_t i = 0; i < shape_.num_hidden_layers; ++i)
    x = decode_block(std::move(x), sequences, limit);
  return x;
}

}  // namespace neap::plan
