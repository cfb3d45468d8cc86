// A decoder-only transformer over flat parameters: inference, decoding with a KV cache, and
// training block by block.
//
// Model     Weights (and gradients, where a unit is trained) are 1-D tensors given by the caller,
//           one for each unit of spec::flat_layout: "embed", "block.i", "head". The model keeps
//           views, and owns no memory that outlives a call. Any floating dtype; norms, softmax and
//           log-probs are computed in float32 inside (float64 for a float64 model).
// Rows      Hidden states are (N, C) with one row a token; a Batch says which rows are one
//           sequence. A padded (B, T) batch is padded on the RIGHT: with causal attention a real
//           token never sees padding, so no mask exists, and what the padded rows hold is garbage
//           to ignore (their gradients are zero if the caller's loss leaves them out).
// Training  forward_train returns a Tape; the heads turn hidden states into losses and d_hidden;
//           Tape::backward walks the blocks in reverse. Gradients are ADDED into the flat gradient
//           tensors; the caller zeroes them. No parameter is an autograd leaf.
// Threads   one call at a time.
// Failure   neap::Error on shapes that disagree, c10::Error from libtorch.
// Cost      said at each function, in elements: N rows, C hidden, F intermediate, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/model_shape.h"

namespace neap::model {

/// Token sequences, one after another in rows.
struct Batch {
  at::Tensor tokens;                  ///< (N,) int64, on the model's device
  std::vector<std::int64_t> lengths;  ///< rows of each sequence; they sum to N

  /// (B, T), right-padded: B sequences of T rows.
  [[nodiscard]] static Batch padded(const at::Tensor& tokens);
  /// (N,) without padding. Equal lengths run as one padded batch.
  [[nodiscard]] static Batch packed(at::Tensor tokens, std::vector<std::int64_t> lengths);
};

/// One tensor for each flat unit. `grads` is empty (nothing is trained) or has one entry a unit,
/// undefined where the unit is frozen; its dtype may be wider than the weights'.
struct FlatTensors {
  std::vector<at::Tensor> weights;  // each (unit.elements,)
  std::vector<at::Tensor> grads;    // each (unit.elements,)
};

struct Lora {
  spec::LoraShape shape;
  double alpha = 16;  ///< adapters are scaled by alpha / rank
  FlatTensors adapters;
};

enum class Direction { kForward, kBackward };

/// Called around every unit of every walk: 0 is the embedding, 1..L the blocks, L + 1 the head
/// (final norm included). ZeRO-3 gathers in `before` and releases in `after`. With tied embeddings
/// the head also reads unit 0.
class WalkObserver {
 public:
  virtual ~WalkObserver() = default;
  virtual void before(Direction direction, std::size_t unit) = 0;
  virtual void after(Direction direction, std::size_t unit) = 0;
};

/// Where a recomputing walk keeps the inputs of its blocks, (N, C) each. Offload and compression
/// are other implementations. put is called in order 0..L-1, take in reverse, once each.
class BlockInputStore {
 public:
  virtual ~BlockInputStore() = default;
  virtual void put(std::size_t block, at::Tensor input) = 0;
  [[nodiscard]] virtual at::Tensor take(std::size_t block) = 0;
};

struct TrainOptions {
  bool recompute = false;            ///< keep only block inputs; run each block again in backward
  BlockInputStore* store = nullptr;  ///< null: as they are, on the device. Used when recomputing
};

/// What forward_train leaves behind for backward.
class Tape {
 public:
  virtual ~Tape() = default;
  /// Output of the last block, before the final norm: (N, C), detached.
  [[nodiscard]] virtual const at::Tensor& hidden() const = 0;
  /// Walks the blocks in reverse from d_hidden (N, C), then the embedding. Once.
  virtual void backward(at::Tensor d_hidden) = 0;
};

/// Keys and values of past tokens. Static tensors given by the caller, one pair a layer, each
/// (B, H_kv, T_max, D). Sequence b's token at position p is at [b, :, p, :]: no holes, whatever the
/// prompt's length.
struct KvCache {
  std::vector<at::Tensor> keys;
  std::vector<at::Tensor> values;

  /// Views over one flat tensor laid out [layer][key, value](B, H_kv, T_max, D).
  [[nodiscard]] static KvCache over(const at::Tensor& flat, const spec::ModelShape& shape,
                                    std::int64_t batch, std::int64_t max_tokens);
  [[nodiscard]] static std::int64_t elements(const spec::ModelShape& shape, std::int64_t batch,
                                             std::int64_t max_tokens);
  [[nodiscard]] std::int64_t batch() const { return keys.at(0).size(0); }
  [[nodiscard]] std::int64_t max_tokens() const { return keys.at(0).size(2); }
  /// The first `n` sequences.
  [[nodiscard]] KvCache first(std::int64_t n) const;
};

/// float32 logits of one chunk hold at most this many elements (128 MiB); rows a chunk = this / V,
/// at least one.
constexpr std::int64_t kLogitsChunkElements = std::int64_t{1} << 25;

struct LogProbOptions {
  double temperature = 1.0;  ///< logits are divided by it
  bool entropy = false;
  std::int64_t chunk_elements = kLogitsChunkElements;
};
struct LogProbs {
  at::Tensor log_probs;  ///< (R,) float32: log p(target) at each row
  at::Tensor entropy;    ///< (R,) float32, if asked; else undefined
  at::Tensor log_sum;    ///< (R,) float32: log sum exp of the row's logits; backward needs it
};

/// A named view into a flat unit.
struct NamedParameter {
  std::string name;
  std::size_t unit = 0;
  at::Tensor weight;
  at::Tensor grad;  ///< undefined where frozen
};

class Transformer {
 public:
  Transformer(const spec::ModelShape& shape, spec::Head head, FlatTensors base,
              std::optional<Lora> lora = std::nullopt);
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  [[nodiscard]] const spec::ModelShape& shape() const;
  [[nodiscard]] spec::Head head() const;
  [[nodiscard]] std::size_t units() const;
  [[nodiscard]] at::Device device() const;
  [[nodiscard]] at::ScalarType dtype() const;
  /// Base parameters in the order of flat_layout / adapters in the order of lora_layout.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const;
  [[nodiscard]] const std::vector<NamedParameter>& adapters() const;

  /// Null: none. The observer outlives its use.
  void set_observer(WalkObserver* observer);
  /// Puts a unit on other flat tensors (a gather buffer). `grad` may be undefined. Cheap: views
  /// only.
  void bind_unit(std::size_t unit, const at::Tensor& weights, const at::Tensor& grads);

  /// Output of the last block, before the final norm: (N, C). No gradient. Transient: 3 (N, C) and
  /// the widest of a block's inner tensors (2 (N, F) for a gated block).
  [[nodiscard]] at::Tensor forward(const Batch& batch);
  /// As forward, keeping what backward needs: (N, C) a block with recompute, else the block's
  /// graph.
  [[nodiscard]] std::unique_ptr<Tape> forward_train(const Batch& batch,
                                                    const TrainOptions& options);

  /// Runs right-padded prompts (B', T) with their lengths, writes keys and values into the cache's
  /// rows `slots` ((B',) int64; undefined: 0..B'-1) and returns the hidden state of each prompt's
  /// last token, (B', C). `lengths` is (B',) int64.
  [[nodiscard]] at::Tensor prefill(const at::Tensor& tokens, const at::Tensor& lengths,
                                   KvCache& cache, const at::Tensor& slots = {});
  /// One token a sequence: tokens (B,), positions (B,) where they go, int64. Attends to positions
  /// 0..positions[b] of row b; `key_limit` is a host bound on max(positions) + 1 (<= T_max), so
  /// that nothing waits for the device. Returns (B, C). Same shapes and addresses for the same
  /// key_limit: it can be captured in a graph.
  [[nodiscard]] at::Tensor decode(const at::Tensor& tokens, const at::Tensor& positions,
                                  KvCache& cache, std::int64_t key_limit);

  /// (R, C) -> (R, V) float32 logits, whole: for sampling.
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden);
  /// log p(targets) at `rows` of hidden. rows: (R,) int64, undefined means all; targets: (R,) int64
  /// (the token that FOLLOWS the row). Chunked: transient 2 chunk_elements and 2 (chunk, C), never
  /// (R, V).
  [[nodiscard]] LogProbs log_probs(const at::Tensor& hidden, const at::Tensor& rows,
                                   const at::Tensor& targets, const LogProbOptions& options = {});
  /// Gradient of a loss through log_probs: d_log_probs (R,) and, when given, d_entropy (R,).
  /// Computes the logits again chunk by chunk, adds to the head's gradients, returns d_hidden (N,
  /// C).
  [[nodiscard]] at::Tensor log_probs_backward(const at::Tensor& hidden, const at::Tensor& rows,
                                              const at::Tensor& targets, const LogProbs& forward,
                                              const at::Tensor& d_log_probs,
                                              const at::Tensor& d_entropy = {},
                                              const LogProbOptions& options = {});
  /// Both in one pass for losses whose gradient is known beforehand (SFT): loss = -sum(weights *
  /// log_probs). One matrix product less than the two calls.
  struct WithGrad {
    LogProbs values;
    at::Tensor d_hidden;  // (N, C)
  };
  [[nodiscard]] WithGrad cross_entropy(const at::Tensor& hidden, const at::Tensor& rows,
                                       const at::Tensor& targets, const at::Tensor& weights,
                                       const LogProbOptions& options = {});

  /// Scalar head: (R,) float32 at `rows` of hidden (undefined: all).
  [[nodiscard]] at::Tensor scores(const at::Tensor& hidden, const at::Tensor& rows = {});
  /// Adds to the head's gradients, returns d_hidden (N, C).
  [[nodiscard]] at::Tensor scores_backward(const at::Tensor& hidden, const at::Tensor& rows,
                                           const at::Tensor& d_scores);

  /// Adds the adapters' product into the base weights, or takes it out again. While merged, forward
  /// and decode skip the adapters; training refuses. In bfloat16 a merge and unmerge rounds the
  /// base: keep a copy if it must come back bit by bit.
  void merge_adapters();
  void unmerge_adapters();
  [[nodiscard]] bool merged() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Hugging Face's initialization: normal(0, 0.02) for matrices, one for norms, zero for biases and
/// the scalar head; then the adapters. The same values on every device.
void initialize(Transformer& model, std::uint64_t seed, double standard_deviation = 0.02);
/// LoRA's A uniform in +-1/sqrt(in), B zero: the adapted model starts as its base.
void initialize_adapters(Transformer& model, std::uint64_t seed);

}  // namespace neap::model
