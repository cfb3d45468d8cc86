#include "formulas/reasons.h"

#include "base/format.h"

namespace neap::formulas {

std::string joined(std::initializer_list<std::string> phrases) {
  std::string out;
  for (const std::string& phrase : phrases) {
    if (phrase.empty()) continue;
    if (!out.empty()) out += "; ";
    out += phrase;
  }
  return out;
}

namespace {

bool groups_keys(const spec::Architecture& a) {
  return a.num_key_value_heads != a.num_attention_heads;
}
std::string grouped_keys(const spec::Architecture& a) {
  return groups_keys(a) ? format("{} heads share the keys and values of {}", a.num_attention_heads,
                                 a.num_key_value_heads)
                        : "";
}
std::string wide_heads(const spec::Architecture& a) {
  return a.query_width() == a.hidden_size
             ? ""
             : format("heads are {} wide together, not h", a.query_width());
}

}  // namespace

std::string attention_reason(const spec::Architecture& a) {
  const std::string bias = a.attention_bias && a.attention_output_bias ? ""
                           : a.attention_bias                          ? "no bias behind attention"
                                                                       : "no biases";
  return joined({grouped_keys(a), wide_heads(a), bias});
}

std::string mlp_reason(const spec::Architecture& a) {
  const bool wide = a.intermediate_size != 4 * a.hidden_size;
  return joined({a.gated ? format("gate, up and down: 3 matrices of h x {}", a.intermediate_size)
                         : (wide ? format("the MLP is {} wide", a.intermediate_size) : ""),
                 a.mlp_bias ? "" : "no biases"});
}

std::string norm_reason(const spec::Architecture& a) {
  return joined({a.norm == spec::NormKind::kLayerNorm ? "" : "RMS norms have no bias",
                 a.query_key_norm ? "queries and keys have norms" : "",
                 a.placement.after && a.placement.before ? "norms behind each part, too" : ""});
}

std::string embedding_reason(const spec::Architecture& a) {
  return joined(
      {a.learned_positions
           ? format("a table of {} positions", a.max_position_embeddings + a.position_offset)
           : "",
       a.projects_embedding() ? format("the table is {} wide and projected", a.embedding_dim) : "",
       a.embedding_norm ? "a norm behind the table" : ""});
}

std::string head_reason(const spec::Architecture& a, spec::Head head) {
  const std::string matrix = head == spec::Head::kScalar ? "a scalar head"
                             : a.tie_word_embeddings     ? ""
                                                         : "the head has a table of its own";
  const bool projects = a.projects_embedding() && head == spec::Head::kLanguageModel;
  return joined({matrix, a.final_norm ? "a final norm" : "",
                 projects ? format("projected to the table's width of {}", a.embedding_dim) : ""});
}

std::string gradient_reason(const ModelSizes& model) {
  const auto own = static_cast<double>(element_bytes(model.gradients));
  if (own < model.batch.width) return "gradients add up in bfloat16";
  return own > model.batch.width
             ? "gradients add up in float32: 4 N_t; optim.gradient_dtype = \"bfloat16\" makes it 2 "
               "N_t"
             : "";
}

std::string optimizer_reason(const ModelSizes& model) {
  const spec::OptimizerConfig& config = model.role.optimizer;
  if (config.kind != "adamw") return format("the optimizer is {}, K is Adam's", config.kind);
  return joined({config.state_dtype == spec::Dtype::kFloat32
                     ? ""
                     : format("moments in {}", to_string(config.state_dtype)),
                 config.master_dtype == spec::Dtype::kFloat32 || model.batch.width >= 4
                     ? ""
                     : format("no float32 copy: masters in {}", to_string(config.master_dtype))});
}

std::string activation_reason(const ModelSizes& model, Recompute recompute) {
  if (recompute == Recompute::kFull) return "";
  const spec::Architecture& a = model.role.shape;
  const bool selective = recompute == Recompute::kSelective;
  const std::string gated =
      a.gated ? (selective ? format("gate and up of width {} are kept", a.intermediate_size)
                           : format("gate, up{} and product of width {} are kept",
                                    model.keeps_gate_activation ? ", act(gate)" : "",
                                    a.intermediate_size))
              : "";
  return joined(
      {selective ? "`selective` also computes the norms' outputs and the activation again"
                 : "attention's scores are not kept (backward computes them again)",
       "there are no dropout masks", grouped_keys(a), wide_heads(a), gated,
       a.placement.after || a.placement.over ? "norms behind a part keep their input" : ""});
}

std::string cache_reason(const spec::Architecture& a) {
  return joined({grouped_keys(a), wide_heads(a)});
}

}  // namespace neap::formulas
