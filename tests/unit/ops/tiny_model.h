// Small models of every block form, with storage of their own.
#pragma once

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/transformer.h"
#include "weights/initialize.h"

namespace neap::ops::testing {

// Tensors this small only wait for one another.
inline const bool kOneThread = (at::set_num_threads(1), true);

inline spec::Architecture tiny_llama() {
  spec::Architecture s;
  s.vocab_size = 41;
  s.hidden_size = s.embedding_dim = 24;
  s.intermediate_size = 40;
  s.num_hidden_layers = 3;
  s.num_attention_heads = 4;
  s.num_key_value_heads = 2;
  s.head_dim = 8;
  s.max_position_embeddings = 64;
  s.rotary.dimensions = 8;
  return s;
}
inline spec::Architecture tiny_gpt2() {
  spec::Architecture s = tiny_llama();
  s.model_type = "gpt2";
  s.num_key_value_heads = 4;
  s.head_dim = 6;
  s.rotary.dimensions = 0;
  s.learned_positions = true;
  s.norm = spec::NormKind::kLayerNorm;
  s.qkv = spec::QkvLayout::kInTurn;
  s.input_major = true;
  s.gated = false;
  s.activation = spec::Activation::kGeluTanh;
  s.tie_word_embeddings = true;
  s.attention_bias = s.attention_output_bias = s.mlp_bias = true;
  return s;
}
/// `norm_first` false and a narrower embedding: the form of OPT-350m.
inline spec::Architecture tiny_opt(bool norm_first) {
  spec::Architecture s = tiny_gpt2();
  s.model_type = "opt";
  s.qkv = spec::QkvLayout::kSeparate;
  s.input_major = false;
  s.activation = spec::Activation::kRelu;
  s.position_offset = 2;
  if (!norm_first) {
    s.placement = {.before = false, .after = false, .over = true};
    s.final_norm = false;
    s.embedding_dim = 16;
  }
  return s;
}

struct Form {  // of a model
  std::string name;
  spec::Architecture shape;
};
inline void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}
/// Every form of block that the passes know.
inline std::vector<Form> forms() {
  spec::Architecture qwen = tiny_llama();
  qwen.attention_bias = true;
  qwen.tie_word_embeddings = true;
  spec::Architecture capped = tiny_llama();
  capped.attention_softcap = 0.5;
  spec::Architecture sliding = tiny_llama();
  sliding.sliding_window = 3;
  sliding.sliding_layers = {true, false, true};
  spec::Architecture gemma = sliding;  // both, four norms, and a gain of one plus the weight
  gemma.attention_softcap = 0.5;
  gemma.logit_softcap = 2;
  gemma.norm = spec::NormKind::kRmsOffset;
  gemma.placement = {.before = true, .after = true, .over = false};
  gemma.embedding_scale = 4.9;
  spec::Architecture qwen3 = tiny_llama();  // norms of queries and keys
  qwen3.query_key_norm = true;
  spec::Architecture gemma3 = gemma;
  gemma3.attention_softcap = gemma3.logit_softcap = 0;
  gemma3.query_key_norm = true;
  spec::Architecture olmo2 = qwen3;
  olmo2.norm_across_heads = true;
  olmo2.placement = {.before = false, .after = true, .over = false};
  return {{"llama", tiny_llama()},
          {"capped", capped},
          {"qwen3", qwen3},
          {"gemma3", gemma3},
          {"olmo2", olmo2},
          {"sliding", sliding},
          {"gemma2", gemma},
          {"qwen2", qwen},
          {"gpt2", tiny_gpt2()},
          {"opt", tiny_opt(true)},
          {"opt_post_norm", tiny_opt(false)}};
}

struct TestModel {
  spec::Architecture shape;
  spec::Head head;
  std::vector<at::Tensor> weights, grads, adapter_weights, adapter_grads;
  std::optional<Transformer> model;

  explicit TestModel(const spec::Architecture& s, spec::Head h = spec::Head::kLanguageModel,
                     std::optional<spec::LoraShape> lora = std::nullopt,
                     at::ScalarType dtype = at::kDouble, std::uint64_t seed = 7)
      : shape(s), head(h) {
    for (const auto& unit : spec::flat_layout(s, h)) {
      weights.push_back(at::zeros({unit.elements}, dtype));
      grads.push_back(lora ? at::Tensor() : at::zeros({unit.elements}, dtype));
    }
    std::optional<Lora> adapters;
    if (lora) {
      for (const auto& unit : spec::lora_layout(s, h, *lora)) {
        adapter_weights.push_back(at::zeros({unit.elements}, dtype));
        adapter_grads.push_back(at::zeros({unit.elements}, dtype));
      }
      adapters = Lora{*lora, {adapter_weights, adapter_grads}};
    }
    model.emplace(s, h, FlatTensors{weights, grads}, adapters);
    weights::initialize(s, h, 0, weights, seed, 0.2);
    if (lora) weights::initialize_adapters(s, h, *lora, adapter_weights, seed);
    // Nothing at a special value: biases, norms and LoRA's B differ from zero and one.
    at::Tensor noise = at::arange(1 << 14, dtype).mul_(0.37).sin_().mul_(0.1);
    for (const auto* list : {&model->parameters(), &model->adapters()}) {
      for (const auto& p : *list) {
        const auto flat = p.weight.view(-1);
        if (p.weight.dim() == 1 || p.name.find("lora_B") != std::string::npos ||
            p.name.find("score") != std::string::npos)
          at::Tensor(flat).add_(noise.narrow(0, 0, flat.numel()));
      }
    }
  }
  void zero_grads() {
    for (auto* list : {&grads, &adapter_grads})
      for (auto& g : *list)
        if (g.defined()) g.zero_();
  }
  [[nodiscard]] std::vector<at::Tensor> copy_grads() const {
    std::vector<at::Tensor> copies;
    for (const auto* list : {&grads, &adapter_grads})
      for (const auto& g : *list)
        if (g.defined()) copies.push_back(g.clone());
    return copies;
  }
};

/// Every block keeps its input only.
inline spec::Checkpointing recompute(const Transformer& model) {
  return spec::checkpointing(spec::CheckpointMode::kFull, model.architecture());
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

inline at::Tensor tokens(std::int64_t batch, std::int64_t length, std::int64_t vocab,
                         std::int64_t salt = 0) {
  return at::arange(batch * length, at::kLong)
      .mul_(7919)
      .add_(salt * 31)
      .remainder_(vocab)
      .view({batch, length});
}

}  // namespace neap::ops::testing
