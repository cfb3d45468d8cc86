// Random jobs of a rank that has a part of what it trains: of sequences, of models, of a pipeline's blocks, or of what
// ranks slice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>

#include "conformance.h"
#include "parallel/communicator.h"
#include "plan/counting/counted_model.h"
#include "random_job.h"
#include "spec/model/pipeline.h"

namespace neap::plan {

// Of packed sequences that several ranks divide: the same for one of them.
inline void divide_sequences(testing::RandomJob& r, testing::Dice& dice) {
  if (r.job.task == spec::Task::kEval || !r.job.packs() || !dice.chance(50)) return;
  const std::int64_t ranks = dice.one_of({2, 3, 4});
  r.job.trainer.n_gpus_per_node = ranks;
  r.job.parallel.context_parallel_size = ranks;
  if (dice.chance(50)) r.job.parallel.cp_comm_type = "p2p";
  // Each answers as many prompts, and mini-batches have all of them or fewer.
  if (r.job.trains_policy()) {
    const std::int64_t prompts = step::div_up(r.job.data.train_batch_size, ranks);
    r.job.data.train_batch_size = prompts * ranks;
    for (std::int64_t* rows : {&r.job.actor.ppo_mini_batch_size, &r.job.critic.ppo_mini_batch_size})
      *rows = dice.chance(50) ? prompts * ranks : prompts;
  }
  for (std::int64_t* tokens :
       {&r.job.data.max_token_len_per_gpu, &r.job.reference_max_token_len_per_gpu,
        &r.job.actor.ppo_max_token_len_per_gpu, &r.job.critic.ppo_max_token_len_per_gpu,
        &r.job.rollout.log_prob_max_token_len_per_gpu})
    *tokens = (*tokens + ranks - 1) / ranks;
  const std::int64_t rank = dice.between(0, ranks - 1);
  for (std::optional<ModelRole>* role :
       {&r.models.actor, &r.models.reference, &r.models.reward, &r.models.critic})
    if (*role) (*role)->context_rank = rank;
}

// `model` as one of several ranks has it.
inline spec::Architecture part_of(spec::Architecture model, const spec::TensorShard& shard) {
  model.tensor = shard;
  // A single key head may be on several ranks.
  const bool copies = model.num_key_value_heads == 1 && model.qkv == spec::QkvLayout::kSeparate &&
                      !model.norm_across_heads;
  model.key_parts = copies && shard.ranks != 3 ? shard.ranks / 2 : shard.ranks;
  return model;
}

// Of whole models that train a policy: some ranks divide the actor where it generates, and have as many prompts each.
inline void divide_generation(testing::RandomJob& r, testing::Dice& dice) {
  if (!r.job.trains_policy() || r.job.context_ranks() > 1 || !dice.chance(50)) return;
  const std::int64_t ranks = dice.one_of({2, 3, 4});
  r.job.trainer.n_gpus_per_node = ranks;
  r.job.rollout.tensor_model_parallel_size = ranks;
  for (std::int64_t* rows : {&r.job.data.train_batch_size, &r.job.actor.ppo_mini_batch_size,
                             &r.job.critic.ppo_mini_batch_size})
    *rows *= ranks;
  ModelRole& actor = *r.models.actor;
  actor.generation_part = part_of(actor.shape, {ranks, dice.between(0, ranks - 1), false});
}

// Of parts of models that train a policy: ranks generate with the whole actor, or with parts of another size.
inline void divide_parts_otherwise(testing::RandomJob& r, const spec::Architecture& whole,
                                   testing::Dice& dice) {
  if (!r.job.trains_policy() || r.job.context_ranks() > 1 || !dice.chance(50)) return;
  const std::int64_t trained = r.job.parallel.tensor_model_parallel_size;
  const std::int64_t ranks = dice.one_of({1, trained == 4 ? 2 : 4});
  const std::int64_t places = std::lcm(trained, ranks) / ranks;
  r.job.trainer.n_gpus_per_node = places * ranks;
  r.job.rollout.tensor_model_parallel_size = ranks;
  for (std::int64_t* rows : {&r.job.data.train_batch_size, &r.job.actor.ppo_mini_batch_size,
                             &r.job.critic.ppo_mini_batch_size})
    *rows *= std::lcm(places, places * ranks / trained);
  ModelRole& actor = *r.models.actor;
  actor.whole = whole;
  const std::int64_t rank = actor.shape.tensor.rank % ranks;
  actor.generation_part = ranks == 1 ? whole : part_of(whole, {ranks, rank, false});
}

// A random job, of which every third is that of a rank that has a part of each model. `alone`: some have a part of each
// sequence, or of the model where it generates.
inline testing::RandomJob job_of(std::uint64_t seed, bool alone) {
  testing::RandomJob r = testing::random_job(seed, testing::test_device().is_cpu());
  testing::Dice dice(seed + 32452843);
  const bool divided = dice.chance(33);
  if (alone) {
    testing::Dice others(seed + 86028121);
    divide_sequences(r, others);
  }
  if (!divided) {
    testing::Dice others(seed + 49979687);
    if (alone) divide_generation(r, others);
    return r;
  }
  const std::int64_t ranks = dice.one_of({2, 3, 4});
  r.job.parallel.tensor_model_parallel_size = ranks;
  r.job.trainer.n_gpus_per_node = r.job.context_ranks() * ranks;
  const std::int64_t rank = dice.between(0, ranks - 1);
  r.job.parallel.sequence_parallel = dice.chance(50);
  const spec::TensorShard shard{ranks, rank, r.job.divides_rows(r.job.main_model())};
  std::optional<spec::Architecture> actor;
  if (r.models.actor) actor = r.models.actor->shape;
  for (std::optional<ModelRole>* role :
       {&r.models.actor, &r.models.reference, &r.models.critic, &r.models.reward}) {
    if (*role) (*role)->shape = part_of((*role)->shape, shard);
  }
  testing::Dice others(seed + 15485863);
  if (alone && actor) divide_parts_otherwise(r, *actor, others);
  return r;
}

// Some jobs have a stage of a pipeline in place of whole models, and more of those of several ranks.
inline bool take_stage(testing::RandomJob& r, std::uint64_t seed, bool alone) {
  const std::int64_t stages = 2 + static_cast<std::int64_t>(seed % 2);
  if (r.job.has_rollout() || seed % 3 == 0 || (alone && seed % 4 > 1)) return false;
  const std::array roles = {&r.models.actor, &r.models.reference, &r.models.reward};
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto* role : roles)
    if (*role) least = std::min(least, (*role)->shape.num_hidden_layers);
  if (least < stages) return false;
  // Of one block; a backward in two parts goes with one chunk.
  const bool zero_bubble = seed % 5 < 2;
  const std::int64_t chunks = zero_bubble ? 1 : least / stages;
  if (zero_bubble) r.job.parallel.pipeline_parallel_schedule = "zero_bubble";
  r.job.parallel.virtual_pipeline_model_parallel_size = chunks;
  for (auto* role : roles) {
    if (!*role) continue;
    spec::Architecture& shape = (*role)->shape;
    shape.pipeline.chunks = chunks;
    shape.pipeline.zero_bubble = zero_bubble;
    const auto stage = static_cast<std::int64_t>(seed / 4) % stages;
    shape = spec::stage_of(shape, (*role)->head, stages, stage, "model").value();
    auto& blocks = (*role)->checkpointing.blocks;
    if (!blocks.empty()) blocks.resize(static_cast<std::size_t>(shape.blocks()));
  }
  return true;
}

// The same for each of several ranks, which divide what their stage says.
inline void divide(testing::RandomJob& r, const parallel::Communicator& ranks, std::int64_t stage,
                   std::int64_t shards = 0) {
  r.job.trainer.n_gpus_per_node = ranks.size() * r.job.parallel.tensor_model_parallel_size;
  r.job.parallel.zero_stage = stage;
  r.job.parallel.zero_shard_size = shards;
  for (std::int64_t* rows : {&r.job.data.train_batch_size, &r.job.actor.ppo_mini_batch_size,
                             &r.job.critic.ppo_mini_batch_size})
    *rows *= ranks.size();
  for (auto* model : {&r.models.actor, &r.models.critic, &r.models.reference, &r.models.reward}) {
    if (!*model) continue;
    (*model)->ranks = r.job.data_parallel();
    (*model)->rank = ranks.rank() % r.job.data_parallel().shards();
  }
}

}  // namespace neap::plan
