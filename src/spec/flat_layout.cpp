// Names, shapes and places of a model's parameters.
#include <algorithm>

#include "base/format.h"
#include "spec/model_shape.h"

namespace neap::spec {
namespace {

// Collects a unit's parameters, each at the next aligned offset.
class UnitBuilder {
 public:
  explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }
  void add(std::string name, std::vector<std::int64_t> shape) {
    Parameter p{std::move(name), std::move(shape), unit_.elements, {}, {}, {}};
    const std::int64_t end = p.offset + p.elements();
    unit_.elements = (end + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    unit_.parameters.push_back(std::move(p));
  }
  void add_norm(const std::string& name, std::int64_t width, bool bias) {
    add(name + ".weight", {width});
    if (bias) add(name + ".bias", {width});
  }
  void add_linear(const std::string& prefix, const Linear& l, bool transposed) {
    const std::string name = prefix + "." + l.name;
    add(name + ".weight", transposed ? std::vector<std::int64_t>{l.in, l.out}
                                     : std::vector<std::int64_t>{l.out, l.in});
    if (l.bias) add(name + ".bias", {l.out});
  }
  [[nodiscard]] FlatUnit take() { return std::move(unit_); }

 private:
  FlatUnit unit_;
};

FlatUnit embedding_unit(const ModelShape& s) {
  UnitBuilder u("embed");
  switch (s.family) {
    case Family::kLlama:
      u.add("model.embed_tokens.weight", {s.vocab_size, s.hidden_size});
      break;
    case Family::kGpt2:
      u.add("transformer.wte.weight", {s.vocab_size, s.hidden_size});
      u.add("transformer.wpe.weight", {s.max_position_embeddings, s.hidden_size});
      break;
    case Family::kOpt:
      u.add("model.decoder.embed_tokens.weight", {s.vocab_size, s.embedding_dim()});
      u.add("model.decoder.embed_positions.weight",
            {s.max_position_embeddings + s.position_offset, s.hidden_size});
      if (s.projects_embedding())
        u.add("model.decoder.project_in.weight", {s.hidden_size, s.embedding_dim()});
      break;
  }
  return u.take();
}

FlatUnit block_unit(const ModelShape& s, std::int64_t i) {
  UnitBuilder u(format("block.{}", i));
  const std::string at = block_prefix(s, i);
  const bool layer_norm = s.family != Family::kLlama;
  const std::vector<Linear> linears = block_linears(s);
  const auto add_linears = [&](std::string_view part) {
    for (const Linear& l : linears) {
      const bool attention = l.name.find("attn") != std::string::npos;
      if (attention == (part == "attention")) u.add_linear(at, l, s.family == Family::kGpt2);
    }
  };
  const char* const norms[][2] = {{"input_layernorm", "post_attention_layernorm"},
                                  {"ln_1", "ln_2"},
                                  {"self_attn_layer_norm", "final_layer_norm"}};
  const auto& names = norms[static_cast<int>(s.family)];
  u.add_norm(at + "." + names[0], s.hidden_size, layer_norm);
  add_linears("attention");
  u.add_norm(at + "." + names[1], s.hidden_size, layer_norm);
  add_linears("mlp");
  return u.take();
}

FlatUnit head_unit(const ModelShape& s, Head head) {
  UnitBuilder u("head");
  switch (s.family) {
    case Family::kLlama:
      u.add_norm("model.norm", s.hidden_size, false);
      break;
    case Family::kGpt2:
      u.add_norm("transformer.ln_f", s.hidden_size, true);
      break;
    case Family::kOpt:
      if (s.norm_first) u.add_norm("model.decoder.final_layer_norm", s.hidden_size, true);
      if (s.projects_embedding())
        u.add("model.decoder.project_out.weight", {s.embedding_dim(), s.hidden_size});
      break;
  }
  if (head == Head::kScalar) {
    u.add("score.weight", {1, s.embedding_dim()});
  } else if (!s.tie_word_embeddings) {
    u.add("lm_head.weight", {s.vocab_size, s.embedding_dim()});
  }
  return u.take();
}

}  // namespace

std::string block_prefix(const ModelShape& s, std::int64_t block) {
  switch (s.family) {
    case Family::kLlama:
      return format("model.layers.{}", block);
    case Family::kGpt2:
      return format("transformer.h.{}", block);
    case Family::kOpt:
      return format("model.decoder.layers.{}", block);
  }
  return {};
}

std::vector<Linear> block_linears(const ModelShape& s) {
  const std::int64_t h = s.hidden_size;
  const std::int64_t i = s.intermediate_size;
  const std::int64_t q = s.num_attention_heads * s.head_dim;
  const std::int64_t kv = s.num_key_value_heads * s.head_dim;
  const bool b = s.attention_bias;
  const bool o = s.attention_output_bias;
  switch (s.family) {
    case Family::kLlama:
      return {{{}, "self_attn.q_proj", h, q, b},       {{}, "self_attn.k_proj", h, kv, b},
              {{}, "self_attn.v_proj", h, kv, b},      {{}, "self_attn.o_proj", q, h, o},
              {{}, "mlp.gate_proj", h, i, s.mlp_bias}, {{}, "mlp.up_proj", h, i, s.mlp_bias},
              {{}, "mlp.down_proj", i, h, s.mlp_bias}};
    case Family::kGpt2:
      return {{{}, "attn.c_attn", h, 3 * h, true},
              {{}, "attn.c_proj", h, h, true},
              {{}, "mlp.c_fc", h, i, true},
              {{}, "mlp.c_proj", i, h, true}};
    case Family::kOpt:
      return {{{}, "self_attn.q_proj", h, h, true},
              {{}, "self_attn.k_proj", h, h, true},
              {{}, "self_attn.v_proj", h, h, true},
              {{}, "self_attn.out_proj", h, h, true},
              {{}, "fc1", h, i, true},
              {{}, "fc2", i, h, true}};
  }
  return {};
}

std::vector<FlatUnit> flat_layout(const ModelShape& shape, Head head) {
  std::vector<FlatUnit> units;
  units.push_back(embedding_unit(shape));
  for (std::int64_t i = 0; i < shape.num_hidden_layers; ++i) units.push_back(block_unit(shape, i));
  // A tied head behind a post-norm stack has nothing of its own.
  if (FlatUnit unit = head_unit(shape, head); !unit.parameters.empty())
    units.push_back(std::move(unit));
  return units;
}

Status check_lora(const ModelShape& shape, const LoraShape& lora) {
  return check_lora(block_linears(shape), lora);
}

std::vector<FlatUnit> lora_layout(const ModelShape& shape, Head head, const LoraShape& lora) {
  std::vector<FlatUnit> units;
  if (lora.rank <= 0) return units;
  const std::vector<Linear> linears = block_linears(shape);
  for (std::int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    UnitBuilder u(format("block.{}", i));
    for (const Linear& l : linears) {
      if (!lora.covers(l)) continue;
      const std::string at = "base_model.model." + block_prefix(shape, i) + "." + l.name;
      u.add(at + ".lora_A.weight", {lora.rank, l.in});
      u.add(at + ".lora_B.weight", {l.out, lora.rank});
    }
    units.push_back(u.take());
  }
  if (head == Head::kScalar) {
    UnitBuilder u("head");
    u.add("base_model.model.score.weight", {1, shape.embedding_dim()});
    units.push_back(u.take());
  }
  return units;
}

}  // namespace neap::spec
