#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 151936,
              .hidden = 4096,
              .intermediate = 22016,
              .layers = 32,
              .heads = 32,
              .key_value_heads = 32,
              .positions = 32768});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.attention_bias = true;  // fixed; the file has no key for it
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a);
  read_qwen_window(f, a);
  read_tokens(f, a, {});
}

}  // namespace

extern const ArchitectureFile qwen2 = {.model_type = "qwen2",
                                       .language_model_class = "Qwen2ForCausalLM",
                                       .scalar_class = "Qwen2ForSequenceClassification",
                                       .read = read,
                                       .blocks = "model.layers",
                                       .names = llama_names()};

}  // namespace neap::spec::architectures
