#include "spec/model/config_groups.h"

namespace neap::spec::architectures {
namespace {

void read(Fields& f, Architecture& a) {
  read_sizes(f, a,
             {.vocab = 256000,
              .hidden = 3072,
              .intermediate = 24576,
              .layers = 28,
              .heads = 16,
              .key_value_heads = 16,
              .positions = 8192});
  read_head_dim(f, a, 256);
  read_gemma(f, a);
  // Older files say "gelu" and mean the tanh approximation.
  a.activation = read_activation(f, "hidden_act", "gelu_pytorch_tanh");
  if (a.activation == Activation::kGelu) a.activation = Activation::kGeluTanh;
  read_rotary(f, a);
  read_tokens(f, a, {.pad = 0, .bos = 2, .eos = 1});
}

}  // namespace

extern const ArchitectureFile gemma = {.model_type = "gemma",
                                       .language_model_class = "GemmaForCausalLM",
                                       .scalar_class = "GemmaForSequenceClassification",
                                       .read = read,
                                       .blocks = "model.layers",
                                       .names = llama_names()};

}  // namespace neap::spec::architectures
