// Textbook terms of a transformer's memory, as functions of the letters that the papers use.
//
// A decoder has l layers of width h, a heads and a vocabulary of v tokens. Its MLP is 4 h wide. It has
// biases, one norm before each part, and dropout. The head shares the embedding matrix. A real model
// differs, so its plan counts other numbers (sheet.h shows both).
//
// Sources   ZeRO: Rajbhandari et al. 2020. Selective: Korthikanti et al. 2022, "Reducing Activation
//           Recomputation in Large Transformer Models". Megatron: Narayanan et al. 2021.
// Threads   stateless functions.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace neap::formulas {

struct Decoder {
  double layers = 0;      ///< l
  double hidden = 0;      ///< h
  double heads = 0;       ///< a
  double vocabulary = 0;  ///< v
};

/// Parallel sizes of a model.
struct Degrees {
  std::int64_t tensor = 1;         ///< t
  std::int64_t pipeline = 1;       ///< p
  std::int64_t chunks = 1;         ///< c: chunks of a pipeline stage with an interleaved schedule
  bool zero_bubble = false;        ///< the pipeline uses a zero-bubble schedule
  std::int64_t data = 1;           ///< d: ranks with the same shard of the model
  std::int64_t zero = 0;           ///< 1 shards optimizer states, 2 also gradients, 3 also weights
  bool sequence_parallel = false;  ///< shards by tokens what tensor parallelism does not shard
  [[nodiscard]] bool divided() const {
    return tensor > 1 || pipeline > 1 || (zero > 0 && data > 1);
  }
};
/// Fails on sizes that a model with this number of layers cannot have.
[[nodiscard]] Status check(const Degrees& degrees, double layers);

// Parameters of all layers.
[[nodiscard]] double attention_parameters(const Decoder& d);  ///< l (4 h^2 + 4 h)
[[nodiscard]] double mlp_parameters(const Decoder& d);        ///< l (8 h^2 + 5 h)
[[nodiscard]] double norm_parameters(const Decoder& d);       ///< l 4 h
[[nodiscard]] double embedding_parameters(const Decoder& d);  ///< v h
[[nodiscard]] double parameters(const Decoder& d);            ///< l (12 h^2 + 13 h) + v h

/// Bytes per parameter of the weight, gradient and optimizer states.
struct ParameterBytes {
  double weight = 2, gradient = 2, optimizer = 12;
};
/// Adam with weights of `width` bytes: two float32 moments, and a float32 copy of narrower weights.
[[nodiscard]] constexpr ParameterBytes adam(double width) {
  return {width, width, width < 4 ? 12.0 : 8.0};
}
/// Model states of a rank, in bytes.
struct States {
  double weights = 0, gradients = 0, optimizer = 0;
  [[nodiscard]] double sum() const { return weights + gradients + optimizer; }
};
/// ZeRO, section 5: stage 1: 4 N + K N / d; stage 2: 2 N + (2 + K) N / d; stage 3: (4 + K) N / d.
[[nodiscard]] States states(double parameters, const ParameterBytes& bytes, std::int64_t stage,
                            double ranks);
/// Parameters of the first pipeline stage, which has the embedding: (l / p x layer + embedding) /
/// t.
[[nodiscard]] double stage_parameters(double layer_parameters, double layers,
                                      double embedding_parameters, const Degrees& degrees);

enum class Recompute {
  kNone,
  kSelective,  ///< scores, softmax and dropout of attention
  kFull,       ///< a layer stores only its input
};
/// A micro-batch of b sequences with s tokens. Activations have `width` bytes. The papers assume 2,
/// and all terms are scaled, including masks.
struct MicroBatch {
  double sequences = 1, length = 1, width = 2;
};
/// Selective, table 2: bytes that a layer stores for its backward.
[[nodiscard]] double layer_activations(const Decoder& d, const MicroBatch& batch,
                                       Recompute recompute, const Degrees& degrees = {});
/// Activations of the first stage. 1F1B: l / p layers of min(p, m) micro-batches. Interleaved:
/// min(p + (p - 1) / c, m) micro-batches (Selective, 4.2.3).
[[nodiscard]] double activations(const Decoder& d, const MicroBatch& batch, Recompute recompute,
                                 const Degrees& degrees, double micro_batches);
/// Selective, 4.3: final norm, head and loss: 4 s b h (1 + v / h) / t.
[[nodiscard]] double output_activations(const Decoder& d, const MicroBatch& batch,
                                        const Degrees& degrees = {});

/// Keys and values: 2 w b (s + n) l h.
[[nodiscard]] double kv_cache(const Decoder& d, double sequences, double tokens, double width);

/// Idle share of a pipeline's time. Megatron, 2.2: (p - 1) / (m c). Qi, 2.3, zero bubble: (p - 1) /
/// (3 m), if a forward and both parts of a backward take equally long.
[[nodiscard]] double pipeline_bubble(const Degrees& degrees, double micro_batches);

}  // namespace neap::formulas
