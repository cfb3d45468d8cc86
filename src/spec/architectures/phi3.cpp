#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 32064,
              .hidden = 3072,
              .intermediate = 8192,
              .layers = 32,
              .heads = 32,
              .key_value_heads = 0,
              .positions = 4096});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-5);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.qkv = QkvLayout::kInTurn;
  a.fused_gate = true;
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a, {.slices = true, .original_positions = 4096, .longrope_aliases = true});
  read_window(f, a, std::nullopt, [](std::int64_t) { return true; });
  read_tokens(f, a, {.pad = 32000, .bos = 1, .eos = 32000});
}

}  // namespace

extern const ArchitectureFile phi3 = {
    .model_type = "phi3",
    .language_model_class = "Phi3ForCausalLM",
    .scalar_class = "Phi3ForSequenceClassification",
    .read = read,
    .blocks = "model.layers",
    .names = llama_names().with(
        {{Module::kQueryKeyValue, "self_attn.qkv_proj"}, {Module::kGateUp, "mlp.gate_up_proj"}})};

}  // namespace neap::spec::architectures
