// Inside of a Transformer: flat units bound to the parts of a network, and the block itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/ops.h"
#include "model/transformer.h"
#include "spec/model_shape.h"

namespace neap::model {

/// An inference pass runs its MLPs in chunks of rows whose widest tensor has at most this many
/// elements.
constexpr std::int64_t kMlpChunkElements = std::int64_t{1} << 25;

/// What attention needs to know of a batch, made once a pass.
struct Sequences {
  std::vector<std::int64_t> lengths;
  at::Tensor positions;     ///< (P,) int64: (T,) when all lengths are equal, else (N,)
  ops::RopeTable rope;      ///< (P, 1, D/2); undefined for learned positions
  std::int64_t equal_to{};  ///< T when all lengths are equal, else 0
};

struct Block {
  Norm attention_norm, mlp_norm;
  Linear qkv;      ///< GPT-2's fused projection; its weight is undefined elsewhere
  Linear q, k, v;  ///< undefined where qkv is
  Linear out;
  Linear gate;  ///< undefined: up alone is activated
  Linear up, down;
};

class Network {
 public:
  Network(const spec::ModelShape& shape, spec::Head head, FlatTensors base,
          std::optional<Lora> lora);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  void bind_unit(std::size_t unit, const at::Tensor& weights, const at::Tensor& grads);

  [[nodiscard]] Sequences sequences(const std::vector<std::int64_t>& lengths) const;
  /// tokens (N,), positions (P,) with N a multiple of P -> (N, C).
  [[nodiscard]] at::Tensor embed(const at::Tensor& tokens, const at::Tensor& positions);
  void embed_backward(const at::Tensor& tokens, const at::Tensor& positions,
                      const at::Tensor& d_hidden);

  enum class Mode {
    kGraph,      ///< autograd records; the input is kept
    kKeepInput,  ///< nothing recorded, same bits as kGraph, the input is not written to
    kConsume,    ///< nothing recorded, the input's memory is reused, rows of the MLP in chunks
  };
  /// Takes (keys, values) of a block, each (N, H_kv, D), rotated.
  using KvSink = std::function<void(const at::Tensor& keys, const at::Tensor& values)>;
  [[nodiscard]] at::Tensor run_block(std::size_t block, at::Tensor x, const Sequences& sequences,
                                     Mode mode, const KvSink& sink = nullptr);
  /// One token a sequence; x (B, C).
  [[nodiscard]] at::Tensor decode_block(std::size_t block, at::Tensor x, const ops::RopeTable& rope,
                                        const at::Tensor& positions, const at::Tensor& mask,
                                        at::Tensor& keys, at::Tensor& values);

  /// Final norm and output projection, if the model has them: what the head's matrix is applied to.
  [[nodiscard]] at::Tensor head_input(const at::Tensor& hidden);

  void before(Direction direction, std::size_t unit) const {
    if (observer) observer->before(direction, unit);
  }
  void after(Direction direction, std::size_t unit) const {
    if (observer) observer->after(direction, unit);
  }
  /// The head's unit; the embedding's where the head has nothing of its own.
  [[nodiscard]] std::size_t head_unit() const {
    return blocks.size() + 1 < layout.size() ? blocks.size() + 1 : 0;
  }
  [[nodiscard]] bool has_rope() const { return shape.family == spec::Family::kLlama; }
  void for_each_linear(const std::function<void(Linear&)>& visit);

  spec::ModelShape shape;
  spec::Head head;
  std::vector<spec::FlatUnit> layout;
  std::vector<NamedParameter> parameters;
  std::vector<NamedParameter> adapters;
  WalkObserver* observer = nullptr;
  bool merged = false;

  at::Tensor token_table, d_token_table;        // (V, E)
  at::Tensor position_table, d_position_table;  // (positions, C); undefined with rope
  Linear project_in, project_out;               // OPT-350m
  std::vector<Block> blocks;
  Norm final_norm;  // weight undefined: none
  Linear lm_head;   // tied: a view of token_table
  Linear score;

 private:
  struct Slot {
    at::Tensor* weight;
    at::Tensor* grad;
  };
  void map_linear(const std::string& name, Linear& linear);
  void map_norm(const std::string& name, Norm& norm);
  void map_blocks();
  void bind(NamedParameter& named, const spec::Parameter& parameter, const at::Tensor& weights,
            const at::Tensor& grads);
  void bind_lora(const Lora& lora);
  struct Heads {
    at::Tensor q, k, v;  // (N, H, D)
  };
  [[nodiscard]] Heads project_heads(Block& block, const at::Tensor& h);
  [[nodiscard]] at::Tensor mlp(Block& block, const at::Tensor& h);

  Activation activation_ = Activation::kSilu;
  std::multimap<std::string, Slot> slots_;  // by parameter name; a tied matrix has two
};

/// Throws unless `t` is what a flat unit asks for.
void check_flat(const at::Tensor& t, const spec::FlatUnit& unit, const char* what);

}  // namespace neap::model
