#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 256000,
              .hidden = 2304,
              .intermediate = 9216,
              .layers = 26,
              .heads = 8,
              .key_value_heads = 4,
              .positions = 8192});
  read_head_dim(f, a, 256);
  read_gemma2(f, a, {.scores = 50, .logits = 30});
  read_rotary(f, a);
  read_window(f, a, 4096, [](std::int64_t layer) { return layer % 2 == 0; });
  read_tokens(f, a, {.pad = 0, .bos = 2, .eos = 1});
}

}  // namespace

extern const ArchitectureFile gemma2 = {.model_type = "gemma2",
                                        .language_model_class = "Gemma2ForCausalLM",
                                        .scalar_class = "Gemma2ForSequenceClassification",
                                        .read = read,
                                        .blocks = "model.layers",
                                        .names = names_with_norms_behind(/*before=*/true)};

}  // namespace neap::spec::architectures
