// The temporaries of a transformer's passes, in the order in which src/model makes and drops them.
//
// Source   src/model/network.cpp (blocks), ops.cpp (operations and their gradients), head.cpp
//          (heads) and transformer.cpp (walks); a change there is a change here. libtorch's own
//          temporaries inside its operations are named where they occur. docs/memory-model.md has
//          the same as formulas.
// Units    rows = tokens of the pass (N), widths in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/tags.h"
#include "plan/tensor_stream.h"

namespace neap::plan {

/// How the device runs the operations.
struct Execution {
  bool cuda = false;
  std::uint64_t width = 4;    ///< bytes of an element of weights and activations
  std::int64_t threads = 16;  ///< of libtorch's CPU kernels, which take scratch memory for each
  /// Copies of flash attention's accumulator of dQ for one (sequence, head); 0: they share one.
  std::int64_t multiprocessors = 0;
};

/// Requests of one model's passes over `sequences` of `length` tokens.
class NetworkStream {
 public:
  NetworkStream(TensorStream& stream, const ModelRole& role, const Execution& execution);

  /// Transformer::forward: output of the last block.
  [[nodiscard]] Temporary forward(std::int64_t sequences, std::int64_t length);
  /// Transformer::prefill: hidden states of each last token.
  [[nodiscard]] Temporary prefill(std::int64_t sequences, std::int64_t length);
  /// Transformer::decode at a key limit.
  [[nodiscard]] Temporary decode(std::int64_t sequences, std::int64_t key_limit);

  /// Transformer::forward_train: what the tape holds until backward has walked it.
  struct BlockGraph {
    Temporary input, output;
    std::vector<Temporary> attention_norm;  ///< statistics
    Temporary h1;                           ///< what q, k and v are projected from
    std::vector<Temporary> attention;       ///< q, k, v, output, log-sum-exp
    Temporary middle;                       ///< between attention and MLP
    std::vector<Temporary> mlp_norm;
    Temporary h2;
    std::vector<Temporary> activation;  ///< gate and up
  };
  struct Tape {
    std::int64_t sequences = 0, length = 0;
    Temporary positions, rope_cos, rope_sin;
    std::vector<BlockGraph> graphs;  ///< empty when recomputing
    std::vector<Temporary> inputs;   ///< of the blocks, when recomputing
    Temporary hidden;
  };
  [[nodiscard]] Tape forward_train(std::int64_t sequences, std::int64_t length);
  void backward(Tape tape, Temporary d_hidden);

  // Heads; `rows` of the hidden states are read, gathered first when `gathered`.
  /// Transformer::logits.
  [[nodiscard]] Temporary logits(std::int64_t rows);
  struct LogProbs {
    Temporary log_probs, entropy, log_sum;
  };
  [[nodiscard]] LogProbs log_probs(std::int64_t rows, bool entropy);
  /// Gradient with respect to (tokens, hidden).
  [[nodiscard]] Temporary log_probs_backward(std::int64_t tokens, std::int64_t rows, bool entropy);
  struct CrossEntropy {
    LogProbs values;
    Temporary d_hidden;
  };
  [[nodiscard]] CrossEntropy cross_entropy(std::int64_t tokens, std::int64_t rows);
  [[nodiscard]] Temporary scores(std::int64_t rows);
  [[nodiscard]] Temporary scores_backward(std::int64_t tokens, std::int64_t rows);

 private:
  enum class Mode { kGraph, kKeepInput, kConsume };
  struct Positions {
    Temporary positions, cos, sin;
  };
  struct Heads {
    Temporary q, k, v;
  };
  struct Normed {
    Temporary y;
    std::vector<Temporary> statistics;  ///< one or two numbers a row
  };

  [[nodiscard]] Temporary make(std::int64_t elements) { return s_.make(elements, e_.width); }
  [[nodiscard]] Temporary make_float(std::int64_t elements) { return s_.make(elements, 4); }
  [[nodiscard]] Temporary make_long(std::int64_t elements) { return s_.make(elements, 8); }
  [[nodiscard]] bool rms() const { return shape_.family == spec::Family::kLlama; }
  [[nodiscard]] bool grouped() const {
    return shape_.num_attention_heads != shape_.num_key_value_heads;
  }
  [[nodiscard]] bool fused_qkv() const { return shape_.family == spec::Family::kGpt2; }
  [[nodiscard]] bool gated() const { return shape_.family == spec::Family::kLlama; }
  /// Weights of the base get gradients.
  [[nodiscard]] bool trains_base() const { return role_.trained && role_.lora.rank == 0; }
  /// Gradients are wider than activations: what is added to them is made apart first.
  [[nodiscard]] bool widens() const { return e_.width != kGradientWidth; }

  [[nodiscard]] Positions positions(std::int64_t count);
  [[nodiscard]] Temporary embed(std::int64_t rows, std::int64_t positions);
  void embed_backward(std::int64_t rows, std::int64_t positions);
  [[nodiscard]] Normed norm(std::int64_t rows, std::int64_t width);
  [[nodiscard]] Temporary norm_backward(std::int64_t rows, std::int64_t width, bool trained);
  [[nodiscard]] Temporary linear(std::int64_t rows, std::size_t linear);
  [[nodiscard]] Temporary linear_backward(std::int64_t rows, std::size_t linear);
  [[nodiscard]] Heads project(std::int64_t rows);
  void rotate(Temporary& t, std::int64_t elements);
  /// Attention with its output projection.
  [[nodiscard]] Temporary attend(std::int64_t sequences, std::int64_t length, BlockGraph* graph);
  [[nodiscard]] Temporary mlp(std::int64_t rows, BlockGraph* graph);
  [[nodiscard]] Temporary run_block(Temporary x, std::int64_t sequences, std::int64_t length,
                                    Mode mode, BlockGraph* graph);
  [[nodiscard]] Temporary run_post_norm_block(Temporary x, std::int64_t sequences,
                                              std::int64_t length, BlockGraph* graph);
  [[nodiscard]] Temporary mlp_backward(std::int64_t rows, BlockGraph& graph);
  [[nodiscard]] Temporary attention_backward(std::int64_t sequences, std::int64_t length,
                                             BlockGraph& graph);
  [[nodiscard]] Temporary block_backward(BlockGraph graph, std::int64_t sequences,
                                         std::int64_t length);
  [[nodiscard]] Temporary decode_block(Temporary x, std::int64_t sequences, std::int64_t limit);
  [[nodiscard]] Temporary head_input(std::int64_t rows);
  [[nodiscard]] std::int64_t chunk_rows(std::int64_t width) const;

  TensorStream& s_;
  const ModelRole& role_;
  const spec::ModelShape& shape_;
  Execution e_;
  std::vector<spec::Linear> linears_;
  std::size_t out_, up_, down_;  ///< places in linears_; gate is before up
  std::int64_t c_, f_, q_width_, kv_width_;
};

}  // namespace neap::plan
