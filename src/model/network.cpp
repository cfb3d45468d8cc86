#include "model/network.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "base/status.h"

namespace neap::model {

using at::Tensor;

void check_flat(const Tensor& t, const spec::FlatUnit& unit, const char* what) {
  if (t.dim() != 1 || t.numel() < unit.elements || !t.is_contiguous() ||
      !at::isFloatingType(t.scalar_type())) {
    throw Error(
        ErrorCode::kInvalidArgument,
        format("The {} of unit \"{}\" must be one contiguous floating tensor of at least {} "
               "elements; it has {} in {} dimensions",
               what, unit.name, unit.elements, t.numel(), t.dim()));
  }
}

Network::Network(const spec::ModelShape& model_shape, spec::Head model_head, FlatTensors base,
                 std::optional<Lora> lora)
    : shape(model_shape),
      head(model_head),
      layout(spec::flat_layout(model_shape, model_head)),
      blocks(static_cast<std::size_t>(model_shape.num_hidden_layers)),
      activation_(activation_from_name(model_shape.hidden_act)) {
  if (base.weights.size() != layout.size() ||
      (!base.grads.empty() && base.grads.size() != layout.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The model has {} flat units; {} weights and {} gradients were given",
                       layout.size(), base.weights.size(), base.grads.size()));
  }
  const std::string stem = shape.family == spec::Family::kLlama  ? "model."
                           : shape.family == spec::Family::kGpt2 ? "transformer."
                                                                 : "model.decoder.";
  const bool gpt2 = shape.family == spec::Family::kGpt2;
  const std::string tokens = stem + (gpt2 ? "wte.weight" : "embed_tokens.weight");
  slots_.emplace(tokens, Slot{&token_table, &d_token_table});
  if (shape.tie_word_embeddings && head == spec::Head::kLanguageModel)
    slots_.emplace(tokens, Slot{&lm_head.weight, &lm_head.d_weight});
  slots_.emplace(stem + (gpt2 ? "wpe.weight" : "embed_positions.weight"),
                 Slot{&position_table, &d_position_table});
  map_linear(stem + "project_in", project_in);
  map_linear(stem + "project_out", project_out);
  map_blocks();
  map_norm(stem + (gpt2                                 ? "ln_f"
                   : shape.family == spec::Family::kOpt ? "final_layer_norm"
                                                        : "norm"),
           final_norm);
  map_linear("lm_head", lm_head);
  map_linear("score", score);

  for (std::size_t u = 0; u < layout.size(); ++u) {
    for (const auto& parameter : layout[u].parameters) {
      if (slots_.count(parameter.name) == 0)
        throw Error(ErrorCode::kInternal,
                    "The flat layout names " + parameter.name + ", which the network lacks");
      parameters.push_back({parameter.name, u, {}, {}});
    }
    if (base.weights[u].defined())
      bind_unit(u, base.weights[u], base.grads.empty() ? Tensor() : base.grads[u]);
  }
  if (lora) bind_lora(*lora);
}

void Network::map_linear(const std::string& name, Linear& linear) {
  slots_.emplace(name + ".weight", Slot{&linear.weight, &linear.d_weight});
  slots_.emplace(name + ".bias", Slot{&linear.bias, &linear.d_bias});
  const std::string adapted = "base_model.model." + name;
  if (name == "score") slots_.emplace(adapted + ".weight", Slot{&linear.weight, &linear.d_weight});
  slots_.emplace(adapted + ".lora_A.weight", Slot{&linear.lora_a, &linear.d_lora_a});
  slots_.emplace(adapted + ".lora_B.weight", Slot{&linear.lora_b, &linear.d_lora_b});
}

void Network::map_norm(const std::string& name, Norm& norm) {
  norm.eps = shape.norm_eps;
  slots_.emplace(name + ".weight", Slot{&norm.weight, &norm.d_weight});
  slots_.emplace(name + ".bias", Slot{&norm.bias, &norm.d_bias});
}

void Network::map_blocks() {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Block& b = blocks[i];
    const std::string at = spec::block_prefix(shape, static_cast<std::int64_t>(i)) + ".";
    switch (shape.family) {
      case spec::Family::kLlama:
        map_norm(at + "input_layernorm", b.attention_norm);
        map_norm(at + "post_attention_layernorm", b.mlp_norm);
        map_linear(at + "self_attn.o_proj", b.out);
        map_linear(at + "mlp.gate_proj", b.gate);
        map_linear(at + "mlp.up_proj", b.up);
        map_linear(at + "mlp.down_proj", b.down);
        break;
      case spec::Family::kGpt2:
        map_norm(at + "ln_1", b.attention_norm);
        map_norm(at + "ln_2", b.mlp_norm);
        map_linear(at + "attn.c_attn", b.qkv);
        map_linear(at + "attn.c_proj", b.out);
        map_linear(at + "mlp.c_fc", b.up);
        map_linear(at + "mlp.c_proj", b.down);
        for (Linear* l : {&b.qkv, &b.out, &b.up, &b.down}) l->input_major = true;
        continue;
      case spec::Family::kOpt:
        map_norm(at + "self_attn_layer_norm", b.attention_norm);
        map_norm(at + "final_layer_norm", b.mlp_norm);
        map_linear(at + "self_attn.out_proj", b.out);
        map_linear(at + "fc1", b.up);
        map_linear(at + "fc2", b.down);
        break;
    }
    map_linear(at + "self_attn.q_proj", b.q);
    map_linear(at + "self_attn.k_proj", b.k);
    map_linear(at + "self_attn.v_proj", b.v);
  }
}

void Network::bind(NamedParameter& named, const spec::Parameter& parameter, const Tensor& weights,
                   const Tensor& grads) {
  const auto view = [&](const Tensor& flat) {
    return flat.defined()
               ? flat.narrow(0, parameter.offset, parameter.elements()).view(parameter.shape)
               : Tensor();
  };
  named.weight = view(weights);
  named.grad = view(grads);
  const auto [first, last] = slots_.equal_range(parameter.name);
  for (auto it = first; it != last; ++it) {
    *it->second.weight = named.weight;
    *it->second.grad = named.grad;
  }
}

void Network::bind_unit(std::size_t unit, const Tensor& weights, const Tensor& grads) {
  const spec::FlatUnit& flat = layout.at(unit);
  check_flat(weights, flat, "weights");
  if (grads.defined()) check_flat(grads, flat, "gradients");
  auto named = std::find_if(parameters.begin(), parameters.end(),
                            [&](const NamedParameter& p) { return p.unit == unit; });
  for (const auto& parameter : flat.parameters) bind(*named++, parameter, weights, grads);
}

void Network::bind_lora(const Lora& lora) {
  throw_if_error(spec::check_lora(shape, lora.shape));
  const auto units = spec::lora_layout(shape, head, lora.shape);
  const FlatTensors& flat = lora.adapters;
  if (flat.weights.size() != units.size() ||
      (!flat.grads.empty() && flat.grads.size() != units.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                format("The adapters have {} flat units; {} weights and {} gradients were given",
                       units.size(), flat.weights.size(), flat.grads.size()));
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Tensor grads = flat.grads.empty() ? Tensor() : flat.grads[u];
    check_flat(flat.weights[u], units[u], "adapters");
    if (grads.defined()) check_flat(grads, units[u], "adapter gradients");
    for (const auto& parameter : units[u].parameters) {
      if (slots_.count(parameter.name) == 0)
        throw Error(ErrorCode::kInternal,
                    "The adapter layout names " + parameter.name + ", which the network lacks");
      bind(adapters.emplace_back(NamedParameter{parameter.name, u, {}, {}}), parameter,
           flat.weights[u], grads);
    }
  }
  const double scale = lora.alpha / static_cast<double>(lora.shape.rank);
  for_each_linear([&](Linear& l) { l.lora_scale = scale; });
}

void Network::for_each_linear(const std::function<void(Linear&)>& visit) {
  for (Block& b : blocks) {
    for (Linear* l : {&b.qkv, &b.q, &b.k, &b.v, &b.out, &b.gate, &b.up, &b.down}) {
      if (l->weight.defined()) visit(*l);
    }
  }
}

Sequences Network::sequences(const std::vector<std::int64_t>& lengths) const {
  if (lengths.empty()) throw Error(ErrorCode::kInvalidArgument, "The batch has no sequences");
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  if (*least <= 0) throw Error(ErrorCode::kInvalidArgument, "A sequence of the batch is empty");
  const std::int64_t limit = shape.sliding_window > 0
                                 ? std::min(shape.sliding_window, shape.max_position_embeddings)
                                 : shape.max_position_embeddings;
  if (*most > limit) {
    throw Error(ErrorCode::kInvalidArgument,
                format("A sequence of {} tokens is longer than the model's {}", *most, limit));
  }
  Sequences s;
  s.lengths = lengths;
  const auto options = token_table.options().dtype(at::kLong);
  if (*least == *most) {
    s.equal_to = *most;
    s.positions = at::arange(*most, options);
  } else {
    const Tensor on_host = at::empty(
        {std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})}, at::dtype(at::kLong));
    auto* out = on_host.data_ptr<std::int64_t>();
    for (const auto n : lengths)
      for (std::int64_t i = 0; i < n; ++i) *out++ = i;
    s.positions = on_host.to(options.device());
  }
  if (has_rope()) {
    s.rope =
        ops::rope_table(s.positions, shape.head_dim, shape.rope_theta, token_table.scalar_type());
  }
  return s;
}

Tensor Network::embed(const Tensor& tokens, const Tensor& positions) {
  before(Direction::kForward, 0);
  Tensor x = token_table.index_select(0, tokens);
  if (project_in.weight.defined()) x = ops::linear(x, project_in);
  if (position_table.defined()) {
    const Tensor rows = position_table.index_select(0, positions + shape.position_offset);
    x.view({-1, rows.size(0), rows.size(1)}).add_(rows);
  }
  after(Direction::kForward, 0);
  return x;
}

void Network::embed_backward(const Tensor& tokens, const Tensor& positions,
                             const Tensor& d_hidden) {
  before(Direction::kBackward, 0);
  if (d_position_table.defined()) {
    const Tensor by_position =
        d_hidden.view({-1, positions.size(0), d_hidden.size(1)}).sum(0);  // (P, C)
    ops::add_rows(d_position_table, positions + shape.position_offset,
                  by_position.to(d_position_table.scalar_type()));
  }
  Tensor d = d_hidden;
  if (project_in.weight.defined() && (project_in.d_weight.defined() || d_token_table.defined())) {
    const Tensor x = token_table.index_select(0, tokens);
    if (project_in.d_weight.defined()) ops::add_outer(project_in.d_weight, d_hidden, x);
    d = at::mm(d_hidden, project_in.weight);
  }
  if (d_token_table.defined())
    ops::add_rows(d_token_table, tokens, d.to(d_token_table.scalar_type()));
  after(Direction::kBackward, 0);
}

Network::Heads Network::project_heads(Block& block, const Tensor& h) {
  const std::int64_t n = h.size(0);
  const auto split = [&](const Tensor& t, std::int64_t heads) {
    return t.view({n, heads, shape.head_dim});
  };
  if (block.qkv.weight.defined()) {
    const Tensor qkv = ops::linear(h, block.qkv);
    const std::int64_t width = shape.num_attention_heads * shape.head_dim;
    const auto part = [&](std::int64_t i) {
      return split(qkv.narrow(1, i * width, width), shape.num_attention_heads);
    };
    return {part(0), part(1), part(2)};
  }
  return {split(ops::linear(h, block.q), shape.num_attention_heads),
          split(ops::linear(h, block.k), shape.num_key_value_heads),
          split(ops::linear(h, block.v), shape.num_key_value_heads)};
}

Tensor Network::mlp(Block& block, const Tensor& h) {
  if (!block.gate.weight.defined())
    return ops::activated_linear(ops::linear(h, block.up), Tensor(), activation_, block.down);
  const Tensor gate = ops::linear(h, block.gate);
  return ops::activated_linear(gate, ops::linear(h, block.up), activation_, block.down);
}

Tensor Network::run_block(std::size_t index, Tensor x, const Sequences& sequences, Mode mode,
                          const KvSink& sink) {
  Block& block = blocks[index];
  const at::AutoGradMode recording(mode == Mode::kGraph);
  const auto attend = [&](const Tensor& h) {
    Heads heads = project_heads(block, h);
    if (has_rope()) {
      // (N, H, D) seen as (B, T, H, D) or (N, H, D): the table broadcasts over sequences and heads.
      const auto rotate = [&](const Tensor& t) {
        const Tensor by_position = t.view({-1, sequences.positions.size(0), t.size(1), t.size(2)});
        return ops::rope(by_position,
                         {sequences.rope.cos.unsqueeze(1), sequences.rope.sin.unsqueeze(1)})
            .view(t.sizes());
      };
      heads.q = rotate(heads.q);
      heads.k = rotate(heads.k);
    }
    if (sink) sink(heads.k, heads.v);
    return ops::linear(ops::attention(heads.q, heads.k, heads.v, sequences.lengths), block.out);
  };
  if (!shape.norm_first) {  // OPT-350m
    x = ops::norm(x + attend(x), block.attention_norm);
    return ops::norm(x + mlp(block, x), block.mlp_norm);
  }
  if (mode == Mode::kGraph) {
    x = x + attend(ops::norm(x, block.attention_norm));
    return x + mlp(block, ops::norm(x, block.mlp_norm));
  }
  if (mode == Mode::kKeepInput) {
    x = x + attend(ops::norm(x, block.attention_norm));
    return x.add_(mlp(block, ops::norm(x, block.mlp_norm)));
  }
  x.add_(attend(ops::norm(x, block.attention_norm)));
  const std::int64_t step = std::max<std::int64_t>(1, kMlpChunkElements / shape.intermediate_size);
  for (std::int64_t first = 0; first < x.size(0); first += step) {
    Tensor rows = x.narrow(0, first, std::min(step, x.size(0) - first));
    rows.add_(mlp(block, ops::norm(rows, block.mlp_norm)));
  }
  return x;
}

Tensor Network::decode_block(std::size_t index, Tensor x, const ops::RopeTable& rope,
                             const Tensor& positions, const Tensor& mask, Tensor& keys,
                             Tensor& values) {
  Block& block = blocks[index];
  const std::int64_t limit = mask.size(-1);
  const auto attend = [&](const Tensor& h) {
    Heads heads = project_heads(block, h);
    if (has_rope()) {
      heads.q = ops::rope(heads.q, rope);
      heads.k = ops::rope(heads.k, rope);
    }
    const Tensor where = positions.view({-1, 1, 1, 1})
                             .expand({heads.k.size(0), heads.k.size(1), 1, heads.k.size(2)});
    keys.scatter_(2, where, heads.k.unsqueeze(2));
    values.scatter_(2, where, heads.v.unsqueeze(2));
    return ops::linear(
        ops::decode_attention(heads.q, keys.narrow(2, 0, limit), values.narrow(2, 0, limit), mask),
        block.out);
  };
  if (!shape.norm_first) {
    x = ops::norm(x.add_(attend(x)), block.attention_norm);
    return ops::norm(x.add_(mlp(block, x)), block.mlp_norm);
  }
  x.add_(attend(ops::norm(x, block.attention_norm)));
  return x.add_(mlp(block, ops::norm(x, block.mlp_norm)));
}

Tensor Network::head_input(const Tensor& hidden) {
  Tensor z = final_norm.weight.defined() ? ops::norm(hidden, final_norm) : hidden;
  return project_out.weight.defined() ? ops::linear(z, project_out) : z;
}

}  // namespace neap::model
