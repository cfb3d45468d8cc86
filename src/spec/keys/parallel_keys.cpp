// The keys of parallel settings.
#include <algorithm>
#include <utility>

#include "spec/keys/job_keys.h"
#include "spec/keys/size_checks.h"
#include "spec/types/fields.h"

namespace neap::spec {
namespace {

template <class Holds>
bool any_model(const Job& job, const Holds& holds) {
  const std::vector<ModelId> all = job.models();
  return std::any_of(all.begin(), all.end(), holds);
}

// The size of a model, given its own keys and those of all models.
std::int64_t size_of(std::int64_t own, std::int64_t of_all) {
  return own > 0 ? own : of_all;
}

// Binds a key whose value is a word or "auto". "auto" sets `automatic` and leaves the field
// unchanged.
ConfigTable::Key& bind_word(ConfigTable& t, std::string path, std::string* field, bool* automatic,
                            std::string help) {
  return t.bind(
      std::move(path), field,
      [field, automatic](const std::string& text) -> Status {
        *automatic = text == "auto";
        if (!*automatic) *field = text;
        return {};
      },
      [field, automatic] { return *automatic ? std::string("auto") : *field; }, std::move(help));
}

ConfigCondition of_several_ranks(const Job& job) {
  return {.holds = [&job] { return job.ranks() > 1; },
          .words = "there are several ranks",
          .otherwise = "one rank has each model, and keeps all its states"};
}

void bind_own_stages(ConfigTable& t, const std::string& at, ModelPlacement& p, const Job& job) {
  t.bind(at + ".pipeline_model_parallel_size", &p.pipeline_model_parallel_size,
         "Pipeline stages of this model; 0: as `parallel.pipeline_model_parallel_size`.")
      .in("stages")
      .at_least(0)
      .at_most(kMostRanks)
      .only(of_several_ranks(job));
  t.bind(at + ".pipeline_model_parallel_layout", &p.pipeline_model_parallel_layout,
         "Layers of each stage or chunk of this model; `[]`: those of "
         "`parallel.pipeline_model_parallel_layout` if it has as many stages, else evenly.")
      .only({.holds =
                 [&p, &job] {
                   return p.pipeline_model_parallel_layout.empty() ||
                          job.parallel.automatic.pipeline ||
                          size_of(p.pipeline_model_parallel_size,
                                  job.parallel.pipeline_model_parallel_size) > 1;
                 },
             .words = "the model has several stages",
             .otherwise = "one rank has all layers of the model"});
}

void bind_slices(ConfigTable& t, Job& job) {
  AutomaticDegrees& automatic = job.parallel.automatic;
  t.bind("parallel.zero_stage", &job.parallel.zero_stage, &automatic.zero_stage,
         "DeepSpeed's `zero_optimization.stage`. 0: nothing is sharded; 1: optimizer states; 2: "
         "also gradients; 3: also weights, even frozen ones.")
      .at_least(0)
      .at_most(3)
      .only(of_training())
      .only({.holds =
                 [&job] { return job.parallel.zero_stage == 0 || job.data_parallel().ranks > 1; },
             .words = "several ranks are data-parallel",
             .otherwise = "one rank has each part of the model, and keeps all its states"});
  t.bind("parallel.zero_shard_size", &job.parallel.zero_shard_size, &automatic.zero_shards,
         "Neighbouring ranks of a ZeRO shard group (FSDP's hybrid sharding). Divides the number of "
         "data-parallel ranks; `0`: all of them.")
      .in("ranks")
      .at_least(0)
      .at_most(kMostRanks)
      .only({.holds =
                 [&job] {
                   return job.parallel.zero_shard_size == 0 || job.parallel.automatic.zero_stage ||
                          any_model(job, [&](ModelId model) {
                            return job.placement(model).zero_stage > 0;
                          });
                 },
             .words = "parallel.zero_stage is at least 1",
             .otherwise = "every rank keeps everything"});
}

void bind_tensor(ConfigTable& t, Job& job) {
  AutomaticDegrees& automatic = job.parallel.automatic;
  t.bind(
       "parallel.tensor_model_parallel_size", &job.parallel.tensor_model_parallel_size,
       &automatic.tensor,
       "Ranks of a tensor-parallel group, as in Megatron: each has a part of the attention heads, "
       "of the MLP's columns and of the vocabulary. Divides the number of ranks.")
      .in("ranks")
      .at_least(1)
      .at_most(kMostRanks);
  t.bind("parallel.sequence_parallel", &job.parallel.sequence_parallel,
         "Megatron's sequence parallelism: tensor-parallel ranks also shard hidden states, in "
         "training and scoring. If the size is `auto` and this key is not set, the plan chooses "
         "it.")
      .only({.holds =
                 [&job] {
                   return !job.parallel.sequence_parallel || any_model(job, [&](ModelId model) {
                     return job.mesh(model).size(Axis::kTensor) > 1;
                   });
                 },
             .words = "parallel.tensor_model_parallel_size is at least 2",
             .otherwise = "one rank has each model, with all of its hidden states"});
}

void bind_context(ConfigTable& t, Job& job) {
  AutomaticDegrees& automatic = job.parallel.automatic;
  t.bind("parallel.context_parallel_size", &job.parallel.context_parallel_size, &automatic.context,
         "Ranks that share each sequence's tokens in training and scoring, as in Megatron. Needs "
         "`use_dynamic_bsz`; a micro-batch has this many times `*_max_token_len_per_gpu` tokens.")
      .in("ranks")
      .at_least(1)
      .at_most(kMostRanks)
      .only(of_training());
  bind_word(t, "parallel.cp_comm_type", &job.parallel.cp_comm_type, &automatic.ring,
            "How context-parallel ranks exchange keys and values (Megatron's key). "
            "`all_gather`: each rank gathers all; `p2p`: ring attention, with those of two ranks "
            "at a time.")
      .one_of({"all_gather", "p2p", "auto"})
      .only({.holds =
                 [&job] {
                   return job.parallel.cp_comm_type == "all_gather" ||
                          job.parallel.automatic.context || job.parallel.automatic.ring ||
                          any_model(job,
                                    [&](ModelId model) { return job.context_ranks(model) > 1; });
                 },
             .words = "parallel.context_parallel_size is at least 2",
             .otherwise = "one rank has all tokens of a sequence"});
}

void bind_stages(ConfigTable& t, Job& job) {
  AutomaticDegrees& automatic = job.parallel.automatic;
  t.bind("parallel.pipeline_model_parallel_size", &job.parallel.pipeline_model_parallel_size,
         &automatic.pipeline,
         "Pipeline stages of each model, as in Megatron; each rank has one. Divides the number of "
         "ranks.")
      .in("stages")
      .at_least(1)
      .at_most(kMostRanks)
      .only(of_training());
  const auto only_of_stages = [&job](auto is_set) {
    return ConfigCondition{.holds = [&job, is_set] { return !is_set() || job.has_stages(); },
                           .words = "parallel.pipeline_model_parallel_size is at least 2",
                           .otherwise = "one rank has all layers of a model"};
  };
  t.bind("parallel.virtual_pipeline_model_parallel_size",
         &job.parallel.virtual_pipeline_model_parallel_size, &automatic.chunks,
         "Chunks of layers per stage (interleaved 1F1B): the bubble shrinks by this factor, "
         "communication grows by it, and stages keep more activations.")
      .in("chunks")
      .at_least(1)
      .at_most(kMaxLayers)
      .only(
          only_of_stages([&job] { return job.parallel.virtual_pipeline_model_parallel_size > 1; }));
  bind_word(t, "parallel.pipeline_parallel_schedule", &job.parallel.pipeline_parallel_schedule,
            &automatic.schedule,
            "Schedule of the stages (torchtitan's key). `zero_bubble` (ZB-H1): the backward of "
            "weights fills the bubble; every stage stores as many activations as the first.")
      .one_of({"1f1b", "zero_bubble", "auto"})
      .only(only_of_stages([&job] { return job.parallel.zero_bubble(); }));
  t.bind("parallel.pipeline_model_parallel_layout", &job.parallel.pipeline_model_parallel_layout,
         "Layers of each stage, as `[7, 8, 8, 5]` of a model with 28, or of each chunk in the "
         "model's order; `[]`: balanced by work, with the LM head.")
      .only(
          only_of_stages([&job] { return !job.parallel.pipeline_model_parallel_layout.empty(); }));
}

void bind_network(ConfigTable& t, Job& job) {
  t.bind("parallel.transport", &job.parallel.transport,
         "How GPUs exchange gradients and sharded weights. `p2p`: by copy engines, on one "
         "machine; `nccl`: by NCCL's kernels; `auto`: `p2p` for two data-parallel GPUs of one "
         "machine, else `nccl`.")
      .one_of({"auto", "p2p", "nccl"});
  t.bind("parallel.intra_node_bandwidth", &job.parallel.intra_node_bandwidth,
         "For plans: bytes per second that a rank sends to another one of its machine in a "
         "collective, such as `25GB` over PCIe; `0 B`: as over NVLink on a GPU, 2 GB on the "
         "CPU.");
  t.bind("parallel.inter_node_bandwidth", &job.parallel.inter_node_bandwidth,
         "For plans: bytes per second that a rank sends to other machines, its share of their "
         "network; `0 B`: 45 GB on a GPU (400 Gb/s), 1.1 GB on the CPU (10 Gb/s).");
}

}  // namespace

void bind_placement(ConfigTable& t, const std::string& at, ModelPlacement& p, bool* zero,
                    const Job& job) {
  const ConfigCondition several = of_several_ranks(job);
  t.bind(at + ".zero_stage", &p.zero_stage, zero,
         "ZeRO's stage of this model; -1: as `parallel.zero_stage`. Only 3 shards a frozen model.")
      .at_least(-1)
      .at_most(3)
      .only(several);
  t.bind(at + ".zero_shard_size", &p.zero_shard_size,
         "Ranks per ZeRO shard group of this model; 0: as `parallel.zero_shard_size`. For one "
         "group give the number of its data-parallel ranks.")
      .in("ranks")
      .at_least(0)
      .at_most(kMostRanks)
      .only(several);
  t.bind(at + ".tensor_model_parallel_size", &p.tensor_model_parallel_size,
         "Ranks per tensor-parallel group of this model in training and scoring; 0: as "
         "`parallel.tensor_model_parallel_size`.")
      .in("ranks")
      .at_least(0)
      .at_most(kMostRanks)
      .only(several);
  t.bind(at + ".sequence_parallel", &p.sequence_parallel,
         "Sequence parallelism of this model; `\"\"`: as `parallel.sequence_parallel`.")
      .only({.holds =
                 [&p, &job] {
                   return !p.sequence_parallel.value_or(false) || job.parallel.automatic.tensor ||
                          size_of(p.tensor_model_parallel_size,
                                  job.parallel.tensor_model_parallel_size) > 1;
                 },
             .words = "the model is tensor-parallel",
             .otherwise = "one rank has all of its hidden states"});
  t.bind(at + ".context_parallel_size", &p.context_parallel_size,
         "Ranks per context-parallel group of this model; 0: as "
         "`parallel.context_parallel_size`.")
      .in("ranks")
      .at_least(0)
      .at_most(kMostRanks)
      .only(several);
  t.bind(at + ".cp_comm_type", &p.cp_comm_type,
         "How these ranks exchange keys and values; `\"\"`: as `parallel.cp_comm_type`.")
      .one_of({"all_gather", "p2p", ""})
      .only({.holds =
                 [&p, &job] {
                   return !p.passes_keys() || job.parallel.automatic.context ||
                          size_of(p.context_parallel_size, job.parallel.context_parallel_size) > 1;
                 },
             .words = "the model is context-parallel",
             .otherwise = "one rank has all tokens of a sequence"});
  bind_own_stages(t, at, p, job);
}

void bind_parallel(ConfigTable& t, Job& job) {
  bind_slices(t, job);
  bind_tensor(t, job);
  bind_context(t, job);
  bind_stages(t, job);
  bind_network(t, job);
}

}  // namespace neap::spec
