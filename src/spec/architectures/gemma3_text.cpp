#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 262208,
              .hidden = 2304,
              .intermediate = 9216,
              .layers = 26,
              .heads = 8,
              .key_value_heads = 4,
              .positions = 131072});
  read_head_dim(f, a, 256);
  read_gemma2(f, a, {});
  a.query_key_norm = true;
  read_rotary_by_layer(f, a, {.default_theta = 1000000},
                       {.theta = "rope_local_base_freq", .default_theta = 10000});
  // Sliding layers have their own rotation angles. Without a window, it is unknown which layers
  // slide.
  if (f.has("sliding_window") && f.is_null("sliding_window"))
    f.refuse("sliding_window", "is null, which is not supported");
  const std::int64_t pattern = f.integer("sliding_window_pattern", 6);
  read_window(f, a, 4096, [pattern](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  read_tokens(f, a, {.pad = 0, .bos = 2, .eos = 1});
}

}  // namespace

extern const ArchitectureFile gemma3_text = {.model_type = "gemma3_text",
                                             .language_model_class = "Gemma3ForCausalLM",
                                             .scalar_class = "Gemma3TextForSequenceClassification",
                                             .read = read,
                                             .blocks = "model.layers",
                                             .names = names_with_norms_behind(/*before=*/true)};

}  // namespace neap::spec::architectures
