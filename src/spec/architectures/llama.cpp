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
              .key_value_heads = 0,
              .positions = 2048});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.mlp_bias = f.boolean("mlp_bias", false);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a);
  read_tokens(f, a, {.bos = 1, .eos = 2});
}

}  // namespace

extern const ArchitectureFile llama = {.model_type = "llama",
                                       .language_model_class = "LlamaForCausalLM",
                                       .scalar_class = "LlamaForSequenceClassification",
                                       .read = read,
                                       .blocks = "model.layers",
                                       .names = llama_names()};

}  // namespace neap::spec::architectures
