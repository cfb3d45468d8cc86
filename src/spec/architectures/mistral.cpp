#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 32000,
              .hidden = 4096,
              .intermediate = 14336,
              .layers = 32,
              .heads = 32,
              .key_value_heads = 8,
              .positions = 131072});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", false);
  read_rotary(f, a);
  // All layers slide; layer_types is ignored.
  set_window(a, f.integer_or_null("sliding_window", 4096, {.low = 1, .high = kMaxPositions}),
             [](std::int64_t) { return true; });
  read_tokens(f, a, {.bos = 1, .eos = 2});
}

}  // namespace

extern const ArchitectureFile mistral = {.model_type = "mistral",
                                         .language_model_class = "MistralForCausalLM",
                                         .scalar_class = "MistralForSequenceClassification",
                                         .read = read,
                                         .blocks = "model.layers",
                                         .names = llama_names()};

}  // namespace neap::spec::architectures
