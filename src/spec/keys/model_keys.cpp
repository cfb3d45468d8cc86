// Keys of a model and of its optimizer, for every section that has them.
#include <map>

#include "base/format.h"
#include "spec/job/optimizer.h"
#include "spec/keys/job_keys.h"
#include "spec/model/checkpointing.h"

namespace neap::spec {
namespace {

// Restricts keys to the optimizers that read them.
void require_optimizers(ConfigTable& t, const std::string& at) {
  const std::vector<std::string> kinds = optimizer_names();
  std::map<std::string, std::vector<Json>> readers;
  for (const std::string& kind : kinds)
    for (const std::string& key : optimizer_keys(*parse_optimizer(kind)))
      readers[key].emplace_back(kind);
  for (auto& [key, values] : readers) {
    if (values.size() == kinds.size()) continue;
    t.at(format("{}.{}", at, key))
        .only({.key = at + ".optimizer", .values = values, .unread = Unread::kMistake});
  }
}

}  // namespace

void bind_model(ConfigTable& t, const std::string& at, ModelConfig& m, const std::string& path_help,
                bool trainable) {
  t.bind(at + ".path", &m.path, path_help);
  t.bind(at + ".tokenizer_path", &m.tokenizer_path,
         at == "actor_rollout_ref.model"
             ? "Folder with `tokenizer.json`; empty: the model's folder."
             : "Folder with this model's `tokenizer.json`; empty: the model's folder. A tokenizer "
               "that "
               "gives other ids than the actor's is an error.");
  if (!trainable) return;
  bind_enum(t, at + ".activation_checkpointing", &m.activation_checkpointing, parse_checkpoint_mode,
            "Recomputation in the backward pass. `none`: nothing; `selective`: the outputs "
            "of norms, rotations and activations; `full`: everything but each layer's input; "
            "`auto`: the fastest choice by tensor and layer that fits. Results are the same.")
      .one_of(checkpoint_mode_names());
  t.bind(at + ".enable_gradient_checkpointing", &m.enable_gradient_checkpointing,
         "verl's name for `activation_checkpointing = \"full\"`.");
  t.bind(at + ".lora_rank", &m.lora.rank,
         "Rank of LoRA adapters; 0 trains every weight. With adapters, gradients and optimizer "
         "states are only those of the adapter.")
      .at_least(0)
      .at_most(4096);
  const ConfigCondition has_adapter = needs(
      at + ".lora_rank", "above 0", [&m] { return m.lora.rank > 0; }, "every weight is trained");
  t.bind(at + ".lora_alpha", &m.lora.alpha, "LoRA's scale: updates are scaled by alpha / rank.")
      .at_least(0)
      .only(has_adapter);
  t.bind(at + ".target_modules", &m.lora.targets,
         "Linear layers that get an adapter, by their last name (`q_proj`), or `all-linear`.")
      .only(has_adapter);
  t.bind(at + ".lora_adapter_path", &m.lora_adapter_path,
         "Folder of a LoRA adapter (PEFT) to continue; rank, alpha and layers are the adapter's. "
         "Empty: a new adapter.");
}

void bind_optimizer(ConfigTable& t, const std::string& at, OptimizerConfig& o) {
  t.bind(at + ".optimizer", &o.kind, "docs/training.md compares the optimizers.")
      .one_of(optimizer_names());
  t.bind(at + ".lr", &o.lr, "Learning rate after warm-up.").at_least(0);
  t.bind(at + ".weight_decay", &o.weight_decay,
         "Decoupled weight decay; sgd adds it to the gradient, as `torch.optim.SGD` does.")
      .at_least(0);
  t.bind(at + ".beta1", &o.beta1, "Decay of the first moment.").at_least(0).at_most(1);
  t.bind(at + ".beta2", &o.beta2, "Decay of the second moment.").at_least(0).at_most(1);
  t.bind(at + ".eps", &o.eps, "Added to the root of the second moment.").at_least(0);
  t.bind(at + ".beta2_decay", &o.beta2_decay, "The second moment decays by 1 - step^beta2_decay.")
      .at_least(-1)
      .at_most(0);
  t.bind(at + ".clip_threshold", &o.clip_threshold,
         "An update whose root mean square is larger is scaled down to it.")
      .at_least(1e-6);
  t.bind(at + ".eps1", &o.eps1, "Added to the squared gradient.").at_least(0);
  t.bind(at + ".eps2", &o.eps2, "Least size of a parameter for relative steps.").at_least(0);
  t.bind(at + ".relative_step", &o.relative_step,
         "The step is min(lr, 1 / sqrt(step)) times the root mean square of the "
         "parameter, as in the paper with `lr = 0.01`; false: lr itself.");
  t.bind(at + ".momentum", &o.momentum, "Decay of the momentum buffer; 0: no buffer.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".nesterov", &o.nesterov, "Nesterov's momentum.");
  bind_enum(t, at + ".state_dtype", &o.state_dtype, parse_dtype,
            "Type of the optimizer's moments. bfloat16 is written with stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  bind_enum(
      t, at + ".gradient_dtype", &o.gradient_dtype, parse_dtype,
      "Type in which gradients of micro-batches are accumulated. bfloat16 needs bfloat16 weights.")
      .one_of({"float32", "bfloat16"});
  bind_enum(t, at + ".master_dtype", &o.master_dtype, parse_dtype,
            "Type of the weights that are updated. float32: bfloat16 weights have a float32 copy. "
            "bfloat16: no copy; updates use stochastic rounding.")
      .one_of({"float32", "bfloat16"});
  t.bind(at + ".lr_warmup_steps", &o.lr_warmup_steps,
         "Linear warm-up: step i of n has i / n of `lr`.")
      .in("optimizer steps")
      .at_least(0);
  t.bind(at + ".lr_warmup_steps_ratio", &o.lr_warmup_steps_ratio,
         "Share of all optimizer steps that warm up, rounded up.")
      .at_least(0)
      .at_most(1)
      .only(where(at + ".lr_warmup_steps", {0}));
  t.bind(at + ".lr_scheduler_type", &o.lr_schedule, "Learning rate after the warm-up.")
      .one_of({"constant", "linear", "cosine"});
  t.bind(at + ".min_lr_ratio", &o.min_lr_ratio,
         "Final rate of `linear` and `cosine`, as a share of `lr`.")
      .at_least(0)
      .at_most(1)
      .only(needs(at + ".lr_scheduler_type", {"linear", "cosine"}));
  require_optimizers(t, at);
}

}  // namespace neap::spec
