#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 32000,
              .hidden = 4096,
              .intermediate = 11008,
              .layers = 32,
              .heads = 32,
              .positions = 2048});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.mlp_bias = f.boolean("mlp_bias", false);
  a.embedding_scale = f.positive("embedding_multiplier", 1);
  a.attention_scale = f.positive("attention_multiplier", 1);
  a.residual_scale = f.positive("residual_multiplier", 1);
  a.logits_divisor = f.positive("logits_scaling", 1);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a);
  read_tokens(f, a, {.pad = -1, .bos = 1, .eos = 2});
}

}  // namespace

extern const ArchitectureFile granite = {
    .model_type = "granite",
    .language_model_class = "GraniteForCausalLM",
    // transformers has no such class. The layout follows other models.
    .scalar_class = "GraniteForSequenceClassification",
    .read = read,
    .blocks = "model.layers",
    .names = llama_names()};

}  // namespace neap::spec::architectures
