#include "spec/keys/parallel_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

Status validate_ranks(const TrainerConfig& t, std::int64_t launched) {
  if (launched == 0) return {};
  const std::int64_t nodes = t.nnodes, each = t.n_gpus_per_node;
  const bool agrees = nodes > 0 && each > 0
                          ? nodes * each == launched
                          : launched % std::max<std::int64_t>({nodes, each, 1}) == 0;
  if (agrees) return {};
  return wrong(format(
      "trainer.nnodes {} and trainer.n_gpus_per_node {} do not go with the {} processes that "
      "were started (0: not set)",
      nodes, each, launched));
}

// The key that sets a number of a model's placement: the model's own key, or the one of [parallel].
std::string placement_key(const Job& job, ModelId model, std::int64_t ModelPlacement::*member) {
  const bool own = job.own_placement(model).*member != ModelPlacement().*member;
  std::string_view name = "zero_stage";
  if (member == &ModelPlacement::zero_shard_size) name = "zero_shard_size";
  if (member == &ModelPlacement::tensor_model_parallel_size) name = "tensor_model_parallel_size";
  if (member == &ModelPlacement::context_parallel_size) name = "context_parallel_size";
  if (member == &ModelPlacement::pipeline_model_parallel_size)
    name = "pipeline_model_parallel_size";
  std::string_view section = "parallel";
  if (own) {
    section = model == job.main_model()      ? "actor_rollout_ref.actor"
              : model == ModelId::kReference ? "actor_rollout_ref.ref"
              : model == ModelId::kCritic    ? "critic"
                                             : "reward_model";
  }
  return format("{}.{}", section, name);
}

// For a key with a parallel size.
Status divides_ranks(const Job& job, std::string_view key, std::int64_t size) {
  const std::int64_t ranks = job.ranks();
  if (ranks % size == 0) return {};
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= ranks; ++n)
    if (ranks % n == 0) possible.push_back(n);
  return wrong(format(
      "{} {} does not divide the {} ranks {}; possible: {}", key, size, ranks,
      job.launched_ranks > 0 ? "that were started" : "(trainer.nnodes x trainer.n_gpus_per_node)",
      joined(possible, ", ")));
}

// Conditions of a backward in two parts.
Status validate_zero_bubble(const Job& job) {
  constexpr const char* kSchedule = "parallel.pipeline_parallel_schedule \"zero_bubble\"";
  // The schedule is defined for one chunk per stage.
  if (job.parallel.virtual_pipeline_model_parallel_size > 1)
    return wrong(
        format("{} does not go with parallel.virtual_pipeline_model_parallel_size {}; take 1 chunk "
               "a stage, or \"1f1b\"",
               kSchedule, job.parallel.virtual_pipeline_model_parallel_size));
  return {};
}

Status validate_layout(const Job& job, ModelId model) {
  if (job.mesh(model).size(Axis::kPipe) == 1) return {};
  for (const double blocks : job.placement(model).pipeline_model_parallel_layout)
    if (blocks < 1 || blocks > 1e6 || blocks != std::floor(blocks))
      return wrong(
          format("pipeline_model_parallel_layout has {}; every stage has a number of blocks, 1 at "
                 "least",
                 blocks));
  return {};
}

// ZeRO shard groups and their replicas.
Status validate_shards(const Job& job, ModelId model) {
  const std::int64_t size = job.placement(model).zero_shard_size;
  if (size == 0 || job.placement(model).zero_stage == 0 || job.task == Task::kEval) return {};
  const std::int64_t copies = job.mesh(model).size(Axis::kCopies);
  if (copies == 1 || (size > 1 && copies % size == 0)) return {};
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 2; n <= copies; ++n)
    if (copies % n == 0) possible.push_back(n);
  return wrong(format(
      "{} {} does not divide the {} ranks that have the same part of the model into groups of "
      "several; possible: {}",
      placement_key(job, model, &ModelPlacement::zero_shard_size), size, copies,
      joined(possible, ", ")));
}

// Conditions of context parallelism.
Status validate_context(const Job& job, ModelId model) {
  const std::int64_t size = job.context_ranks(model);
  if (size == 1 || job.packs()) return {};
  return wrong(
      format("{} {} does not go with {}.use_dynamic_bsz = false: the ranks divide packed "
             "sequences; set true",
             placement_key(job, model, &ModelPlacement::context_parallel_size), size,
             job.has_rollout() ? "actor_rollout_ref.actor" : "data"));
}

Status validate_mesh(const Job& job, ModelId model) {
  const Mesh mesh = job.mesh(model);
  std::string keys;
  std::int64_t product = 1;
  for (const auto& [axis, key] :
       {std::pair(Axis::kTensor,
                  placement_key(job, model, &ModelPlacement::tensor_model_parallel_size)),
        std::pair(Axis::kContext,
                  placement_key(job, model, &ModelPlacement::context_parallel_size)),
        std::pair(Axis::kPipe,
                  placement_key(job, model, &ModelPlacement::pipeline_model_parallel_size))}) {
    if (mesh.size(axis) == 1) continue;
    const bool several = !keys.empty();
    keys += format("{}{}", several ? " times " : "", key);
    NEAP_TRY(divides_ranks(job, key, mesh.size(axis)));
    product *= mesh.size(axis);
    if (several) NEAP_TRY(divides_ranks(job, keys + ",", product));
  }
  NEAP_TRY(validate_shards(job, model));
  return validate_context(job, model);
}

// Conditions of rollouts whose placement differs from training.
Status validate_generation(const Job& job) {
  return divides_ranks(job, "actor_rollout_ref.rollout.tensor_model_parallel_size",
                       job.generation_mesh().size(Axis::kTensor));
}

}  // namespace

Status check_ranks(const Job& job) {
  NEAP_TRY(validate_ranks(job.trainer, job.launched_ranks));
  for (const ModelId model : job.models()) NEAP_TRY(validate_mesh(job, model));
  for (const ModelId model : job.models()) NEAP_TRY(validate_layout(job, model));
  if (job.has_stages() && job.parallel.zero_bubble()) NEAP_TRY(validate_zero_bubble(job));
  return validate_generation(job);
}

}  // namespace neap::spec
