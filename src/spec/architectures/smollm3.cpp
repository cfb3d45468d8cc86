#include "base/format.h"
#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

// `no_rope_layers` has 1 for a layer that rotates and 0 for one that does not. If it is missing,
// every `no_rope_layer_interval`-th layer does not rotate.
std::vector<bool> read_unrotated(Fields& f, const Architecture& a) {
  const auto layers = static_cast<std::size_t>(a.num_hidden_layers);
  const std::int64_t interval = f.integer("no_rope_layer_interval", 4);
  std::vector<bool> unrotated;
  if (!f.has("no_rope_layers") || f.is_null("no_rope_layers")) {
    for (std::int64_t i = 0; i < a.num_hidden_layers; ++i)
      unrotated.push_back((i + 1) % interval == 0);
    return unrotated;
  }
  const Json& given = f.value("no_rope_layers");
  if (!given.is_array() || given.size() < layers) {
    f.fail("no_rope_layers", format("is not a list of {} layers", layers));
    return {};
  }
  for (std::size_t i = 0; i < layers; ++i) {
    if (given[i] != 0 && given[i] != 1)
      f.fail("no_rope_layers", format("has {}; a layer has 0 or 1", given[i].dump()));
    unrotated.push_back(given[i] == 0);
  }
  return unrotated;
}

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 128256,
              .hidden = 2048,
              .intermediate = 11008,
              .layers = 36,
              .heads = 16,
              .key_value_heads = 4,
              .positions = 32768});
  read_head_dim(f, a, 0);
  a.norm_eps = f.number("rms_norm_eps", 1e-6);
  a.activation = read_activation(f, "hidden_act", "silu");
  a.attention_bias = a.attention_output_bias = f.boolean("attention_bias", false);
  a.mlp_bias = f.boolean("mlp_bias", false);
  a.tie_word_embeddings = f.boolean("tie_word_embeddings", true);
  read_rotary(f, a, {.default_theta = 2000000});
  a.unrotated_layers = read_unrotated(f, a);
  read_switched_window(f, a, std::nullopt, [&](std::int64_t layer) { return !a.rotates(layer); });
  read_tokens(f, a, {.pad = 128004, .bos = 128000, .eos = 128001});
}

}  // namespace

extern const ArchitectureFile smollm3 = {.model_type = "smollm3",
                                         .language_model_class = "SmolLM3ForCausalLM",
                                         .scalar_class = "SmolLM3ForSequenceClassification",
                                         .read = read,
                                         .blocks = "model.layers",
                                         .names = llama_names()};

}  // namespace neap::spec::architectures
