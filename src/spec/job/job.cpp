#include "spec/job/job.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

namespace neap::spec {

std::filesystem::path Job::resolve(const std::string& path) const {
  const std::filesystem::path p(path);
  return p.is_absolute() || p.empty() ? p : folder / p;
}

std::filesystem::path Job::output_folder() const {
  const std::string& given = trainer.default_local_dir;
  return resolve(given.empty() ? format("output/{}", to_string(task)) : given).lexically_normal();
}

Result<ModelFiles> Job::model_files(ModelId model, const std::string& path,
                                    const std::string& adapter) const {
  // Looks for the models in this order, because a critic may start from a reward model or a
  // language model.
  const auto in = [&](std::initializer_list<ModelId> models) {
    return find_model_folder(resolve(path), models);
  };
  constexpr ModelId kActor = ModelId::kActor, kReward = ModelId::kReward;
  constexpr ModelId kCritic = ModelId::kCritic;
  const std::filesystem::path found = model == kCritic   ? in({kCritic, kReward, kActor})
                                      : model == kReward ? in({kReward, kCritic, kActor})
                                                         : in({kActor, kReward, kCritic});
  NEAP_TRY_ASSIGN(ModelFiles files, find_model(found));
  if (!adapter.empty()) files.adapter = resolve(adapter);
  return files;
}

bool Job::uses_reference() const {
  return task == Task::kDpo ||
         (trains_policy() && (algorithm.use_kl_in_reward || actor.use_kl_loss));
}
bool Job::old_log_probs_are_current() const {
  const bool one_update = actor.ppo_epochs == 1 && actor_mini_batch() == data.train_batch_size;
  return trains_policy() && one_update && !algorithm.use_kl_in_reward &&
         !keeps_rollout_log_probs() && !validates_divergence();
}
bool Job::reference_is_actor_base() const {
  // A precomputation runs before the actor's weights are loaded.
  return uses_reference() && !precomputes_reference() && actor_model.lora.rank > 0 &&
         (reference_model.path.empty() || reference_model.path == actor_model.path);
}
const std::string& Job::reference_path() const {
  return reference_model.path.empty() ? actor_model.path : reference_model.path;
}
const std::string& Job::critic_path() const {
  if (!critic.model.path.empty()) return critic.model.path;
  return has_reward_model() ? reward_model.path : actor_model.path;
}
bool Job::starts_critic_head() const {
  return critic.init_head || (critic.model.path.empty() && !has_reward_model());
}
std::int64_t Job::actor_mini_batch() const {
  return actor.ppo_mini_batch_size != 0 ? actor.ppo_mini_batch_size : data.train_batch_size;
}
std::int64_t Job::critic_mini_batch() const {
  return critic.ppo_mini_batch_size != 0 ? critic.ppo_mini_batch_size : actor_mini_batch();
}
std::int64_t Job::sequences_per_row() const {
  if (has_rollout()) return rollout.n;
  return has_pairs() ? 2 : 1;
}
std::int64_t Job::sequences_per_step() const {
  return data.train_batch_size * sequences_per_row();
}
std::int64_t Job::ranks() const {
  if (launched_ranks > 0) return launched_ranks;
  return std::max<std::int64_t>(1, trainer.nnodes) *
         std::max<std::int64_t>(1, trainer.n_gpus_per_node);
}
std::int64_t Job::node_ranks() const {
  if (trainer.n_gpus_per_node > 0) return trainer.n_gpus_per_node;
  if (launched_node_ranks > 0) return launched_node_ranks;
  return trainer.nnodes > 0 ? std::max<std::int64_t>(1, ranks() / trainer.nnodes) : 0;
}
std::vector<ModelId> Job::models() const {
  std::vector<ModelId> out = {main_model()};
  if (uses_reference() && !reference_is_actor_base() && !reads_experience())
    out.push_back(ModelId::kReference);
  if (has_critic()) out.push_back(ModelId::kCritic);
  if (generates() && has_reward_model()) out.push_back(ModelId::kReward);
  return out;
}
ModelPlacement Job::own_placement(ModelId model) const {
  if (task == Task::kEval) return {};
  if (model == main_model()) return actor_placement;
  if (model == ModelId::kReference) return reference_placement;
  return model == ModelId::kCritic ? critic_placement : reward_placement;
}
ModelPlacement Job::placement(ModelId model) const {
  ModelPlacement out{parallel.zero_stage,
                     parallel.zero_shard_size,
                     parallel.tensor_model_parallel_size,
                     parallel.sequence_parallel,
                     parallel.context_parallel_size,
                     parallel.cp_comm_type,
                     parallel.pipeline_model_parallel_size,
                     parallel.pipeline_model_parallel_layout};
  const ModelPlacement own = own_placement(model);
  if (own.zero_stage >= 0) out.zero_stage = own.zero_stage;
  if (own.zero_shard_size > 0) out.zero_shard_size = own.zero_shard_size;
  if (own.tensor_model_parallel_size > 0)
    out.tensor_model_parallel_size = own.tensor_model_parallel_size;
  if (own.context_parallel_size > 0) out.context_parallel_size = own.context_parallel_size;
  if (own.sequence_parallel) out.sequence_parallel = own.sequence_parallel;
  if (!own.cp_comm_type.empty()) out.cp_comm_type = own.cp_comm_type;
  const std::int64_t stages = own.pipeline_model_parallel_size;
  if (stages > 0 && stages != out.pipeline_model_parallel_size) {
    out.pipeline_model_parallel_size = stages;
    out.pipeline_model_parallel_layout.clear();
  }
  if (!own.pipeline_model_parallel_layout.empty())
    out.pipeline_model_parallel_layout = own.pipeline_model_parallel_layout;
  // With one stage a layout has no effect.
  if (out.pipeline_model_parallel_size == 1) out.pipeline_model_parallel_layout.clear();
  if (out.tensor_model_parallel_size == 1) out.sequence_parallel = false;
  if (out.context_parallel_size == 1) out.cp_comm_type = ParallelConfig().cp_comm_type;
  return out;
}
bool Job::places_models_alike() const {
  const ModelPlacement main = placement(main_model());
  const std::vector<ModelId> all = models();
  return std::all_of(all.begin(), all.end(),
                     [&](ModelId model) { return placement(model) == main; });
}
Mesh Job::mesh(ModelId model) const {
  const ModelPlacement own = placement(model);
  const std::int64_t tensor = own.tensor_model_parallel_size;
  // `neap eval` ignores these keys.
  const bool trains = task != Task::kEval;
  const std::int64_t stages = trains ? own.pipeline_model_parallel_size : 1;
  const std::int64_t context = trains ? own.context_parallel_size : 1;
  const std::int64_t rows = std::max<std::int64_t>(1, ranks() / (stages * context * tensor));
  // spec/keys/parallel_checks.h rejects sizes that do not divide the ranks.
  std::int64_t shards = trains && own.zero_stage > 0 ? own.zero_shard_size : 0;
  if (shards == 1 || (shards > 1 && rows * context % shards != 0)) shards = 0;
  return Mesh()
      .set(Axis::kPipe, stages)
      .set(Axis::kContext, context)
      .set(Axis::kTensor, tensor)
      .set(Axis::kData, rows)
      .set_shards(shards);
}
bool Job::has_stages() const {
  const std::vector<ModelId> all = models();
  return std::any_of(all.begin(), all.end(),
                     [&](ModelId model) { return mesh(model).size(Axis::kPipe) > 1; });
}
std::vector<Mesh> Job::model_meshes() const {
  std::vector<Mesh> out;
  for (const ModelId model : models()) out.push_back(mesh(model));
  return out;
}
bool Job::copies_rollout_weights() const {
  return trains_policy() && generates() && rollout.colocation != Colocation::kStages;
}

Residency Job::residency() const {
  const bool stays = copies_rollout_weights() && rollout.colocation == Colocation::kResident;
  return stays ? Residency::kAll : memory.offload;
}

Mesh Job::generation_mesh() const {
  const Mesh arranged = mesh();
  if (!trains_policy() || !generates()) return arranged;
  const std::int64_t trained = arranged.size(Axis::kTensor);
  const std::int64_t tensor =
      rollout.tensor_model_parallel_size != 0 ? rollout.tensor_model_parallel_size : trained;
  if (tensor == trained && arranged.size(Axis::kPipe) == 1) return arranged;
  return Mesh()
      .set(Axis::kTensor, tensor)
      .set(Axis::kData, std::max<std::int64_t>(1, ranks() / tensor));
}
std::int64_t Job::rows_per_rank(ModelId model) const {
  return data.train_batch_size / data_ranks(model);
}
std::int64_t Job::sequences_per_rank(ModelId model) const {
  return sequences_per_step() / data_ranks(model);
}
std::int64_t Job::prompts_per_rank() const {
  return data.train_batch_size / generating_ranks();
}
std::int64_t Job::responses_per_rank() const {
  return sequences_per_step() / generating_ranks();
}
std::int64_t Job::rollout_batch() const {
  const std::int64_t all = responses_per_rank();
  return rollout.batch_size == 0 ? all : std::min(rollout.batch_size, all);
}
PrefillShape Job::prefill() const {
  const std::int64_t prompts = (rollout_batch() + rollout.n - 1) / rollout.n;
  const std::int64_t longest = data.max_prompt_length;
  // Without chunked prefill a prompt takes one pass, whatever its length.
  const std::int64_t budget = rollout.enable_chunked_prefill
                                  ? rollout.max_num_batched_tokens
                                  : std::max(rollout.max_num_batched_tokens, longest);
  return prefill_shape(prompts, longest, budget);
}
std::int64_t Job::reference_micro_batch() const {
  if (reference_micro_batch_size_per_gpu != 0) return reference_micro_batch_size_per_gpu;
  return has_rollout() ? rollout.log_prob_micro_batch_size_per_gpu
                       : data.micro_batch_size_per_gpu * sequences_per_row();
}
std::int64_t Job::reward_micro_batch() const {
  return reward_micro_batch_size_per_gpu != 0 ? reward_micro_batch_size_per_gpu
                                              : rollout.log_prob_micro_batch_size_per_gpu;
}
std::int64_t Job::values_micro_batch() const {
  return critic.forward_micro_batch_size_per_gpu != 0 ? critic.forward_micro_batch_size_per_gpu
                                                      : critic.ppo_micro_batch_size_per_gpu;
}
std::int64_t Job::loss_scale_factor() const {
  return actor.loss_scale_factor != 0 ? actor.loss_scale_factor : data.max_response_length;
}
std::int64_t Job::max_sequence_length() const {
  return data.max_prompt_length + data.max_response_length;
}

}  // namespace neap::spec
