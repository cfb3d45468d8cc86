// A model that nobody has: Llama's names, GPT-NeoX's residual, Gemma's norm, a cap and a window.
#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 97,
              .hidden = 32,
              .intermediate = 48,
              .layers = 3,
              .heads = 4,
              .key_value_heads = 2,
              .positions = 64});
  read_head_dim(f, a, 8);
  a.norm = NormKind::kRmsOffset;
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.parallel_residual = f.boolean("use_parallel_residual", true);
  a.activation = read_activation(f, "hidden_act", "gelu");
  a.attention_softcap = f.positive_or_null("attn_logit_softcapping", 20).value_or(0);
  read_rotary(f, a, {.default_partial = 0.5, .slices = true});
  read_window(f, a, 5, [](std::int64_t layer) { return layer != 1; });
  read_tokens(f, a, {.pad = 0, .bos = 1, .eos = 2});
}

}  // namespace

extern const ArchitectureFile recipe_sample = {
    .model_type = "recipe_sample",
    .language_model_class = "RecipeSampleForCausalLM",
    .scalar_class = "RecipeSampleForSequenceClassification",
    .read = read,
    .blocks = "model.layers",
    .names = llama_names()};

}  // namespace neap::spec::architectures
