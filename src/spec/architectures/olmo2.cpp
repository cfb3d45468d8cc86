#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 50304,
              .hidden = 4096,
              .intermediate = 11008,
              .layers = 32,
              .heads = 32,
              .positions = 2048});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-5);
  a.placement = {.before = false, .after = true, .over = false};
  a.activation = read_activation(f, "hidden_act", "silu");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.query_key_norm = a.norm_across_heads = true;
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a);
  read_tokens(f, a, {.pad = 1, .bos = -1, .eos = 50279});
}

}  // namespace

extern const ArchitectureFile olmo2 = {.model_type = "olmo2",
                                       .language_model_class = "Olmo2ForCausalLM",
                                       .scalar_class = "Olmo2ForSequenceClassification",
                                       .read = read,
                                       .blocks = "model.layers",
                                       .names = names_with_norms_behind(/*before=*/false)};

}  // namespace neap::spec::architectures
