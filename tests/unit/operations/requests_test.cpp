// Random jobs: every phase, run by the trainer's backend with libtorch, asks for the tensors that the
// plan's backend counts, request by request. A generation goes on by its tokens: its own actions are
// counted, and the plan's take at least as much memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "aten_world.h"
#include "bridge/no_autograd.h"
#include "checked_ranks.h"
#include "conformance.h"
#include "ops/transformer.h"
#include "parallel/communicator.h"
#include "parallel/groups.h"
#include "plan/counted_backend.h"
#include "plan/counted_model.h"
#include "plan/counted_source.h"
#include "random_job.h"
#include "random_rollout.h"
#include "rlhf/live_backend.h"
#include "spec/pipeline.h"
#include "step/gradient_slots.h"
#include "train/optimizer.h"

namespace neap::plan {
namespace {

parallel::Communicator& alone() {
  static const auto communicator = parallel::make_single();
  return *communicator;
}

// Every piece of an update, or every part where states are streamed; slots are the tensors themselves.
void for_each_part(const AtenWorld& world, const ModelRole& role, const spec::Phase& phase,
                   ops::AtenOps& ops, const std::vector<train::OptimizerUnit>& pieces,
                   const rlhf::LiveTraining::VisitPart& visit) {
  if (!phase.streams_states) {
    for (const train::OptimizerUnit& piece : pieces) visit(piece);
    return;
  }
  const step::UpdateParts parts = update_parts(role, world.dtype(), world.hosted(role));
  for (const step::UpdatePart& part : parts.list()) {
    const train::OptimizerUnit& unit = pieces[part.piece];
    const auto in_slot = [&](const step::PartTensor& t) {
      using Kind = step::PartTensor::Kind;
      const at::Tensor& whole = t.kind == Kind::kWeights     ? unit.weights
                                : t.kind == Kind::kGradients ? unit.gradients
                                                             : unit.state[t.state];
      return whole.narrow(0, t.elements == part.count ? part.first - unit.first : 0, t.elements);
    };
    visit(step::part_of(ops, unit, part, parts.layout(part), in_slot));
  }
}

// Of packed sequences that several ranks divide: the same for one of them.
void divide_sequences(testing::RandomJob& r, testing::Dice& dice) {
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
spec::Architecture part_of(spec::Architecture model, const spec::TensorShard& shard) {
  model.tensor = shard;
  // A single key head may be on several ranks.
  const bool copies = model.num_key_value_heads == 1 && model.qkv == spec::QkvLayout::kSeparate &&
                      !model.norm_across_heads;
  model.key_parts = copies && shard.ranks != 3 ? shard.ranks / 2 : shard.ranks;
  return model;
}

// Of whole models that train a policy: some ranks divide the actor where it generates, and have as many prompts each.
void divide_generation(testing::RandomJob& r, testing::Dice& dice) {
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
void divide_parts_otherwise(testing::RandomJob& r, const spec::Architecture& whole,
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
testing::RandomJob job_of(std::uint64_t seed, bool alone) {
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
step::KernelProfile profile_of(const testing::RandomJob& r, const spec::Phase& phase) {
  step::KernelProfile profile = testing::test_profile();
  profile.tensor_ranks = role_of(r.models, phase).shape.tensor.ranks;
  profile.context_ranks = r.job.context_ranks();
  return profile;
}

// Stages that are not there: they take what is sent and send zeros.
class NoStages final : public step::StageLinks<at::Tensor> {
 public:
  void send(const at::Tensor& t, std::int64_t) override { EXPECT_TRUE(t.is_contiguous()); }
  void receive(const at::Tensor& t, std::int64_t) override { at::Tensor(t).zero_(); }
  [[nodiscard]] std::vector<double> join(const std::vector<double>& mine) override { return mine; }
};

// Some jobs have a stage of a pipeline in place of whole models, and more of those of several ranks.
bool take_stage(testing::RandomJob& r, std::uint64_t seed, bool alone) {
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

// Values of which gradients follow that are not zero.
void fill(step::Experience<at::Tensor>& e, std::int64_t vocabulary) {
  step::Sequences<at::Tensor>& s = e.sequences;
  s.mask.fill_(1);
  for (at::Tensor* tokens : {&s.tokens, &s.targets}) tokens->random_(vocabulary);
  if (s.packed)
    for (at::Tensor* tokens : {&s.packed->tokens, &s.packed->targets}) tokens->random_(vocabulary);
  for (at::Tensor* values : {&e.advantages, &e.returns, &e.reference_sums})
    if (values->defined()) values->uniform_(0.5, 1);
}

// A phase as the trainer runs it, on data of the plan's sizes.
void run_live(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
              const std::function<void()>& begin, bool filled = false) {
  const ModelRole role = role_of(r.models, phase);
  const auto host = [&](const step::Shape& shape, Dtype dtype) { return world.host(shape, dtype); };
  const step::KernelProfile profile = profile_of(r, phase);
  auto e = PhaseInputs<at::Tensor, decltype(host)>(
               r.job, profile, host, smaller_sizes(profile, r.job, r.models, r.dtype, phase))
               .experience(role.shape, phase, role.context_rank);
  if (filled) fill(e, role.shape.vocab_size);
  std::optional<train::Optimizer> optimizer;
  std::unique_ptr<step::GradientSlots<ops::AtenOps>> sink;
  rlhf::LiveTraining training;
  if (phase.trains()) {
    std::vector<train::OptimizerUnit> units = world.units(role);
    const std::optional<train::OptimizerSlice> slice = world.slice(role, units);
    if (phase.slices_gradients) {
      sink = world.sink(role, units, *slice);
      for (train::OptimizerUnit& unit : units) unit.gradients = at::Tensor();
    }
    optimizer.emplace(role.optimizer, optimizer_of(role, r.dtype), 7, std::move(units),
                      world.ranks(), slice, /*reduced_together=*/1);
    step::GradientSink<at::Tensor>* to = sink.get();
    if (!sink) to = optimizer->gradient_sink();
    world.model(role).send_gradients(to);
    training.optimizer = &*optimizer;
    training.checkpointing = &role.checkpointing;
    training.updates = {0, spec::update_shape(r.job, phase.body).updates()};
    training.learning_rate = [](std::int64_t) { return 1e-3; };
    training.scale = [](std::int64_t) { return step::LossScale{1, 1, 1}; };
    training.for_each_part = [&](const auto& visit) {
      for_each_part(world, role, phase, world.model(role).ops(), optimizer->pieces(), visit);
    };
    training.gather_weights = [&] { optimizer->gather_weights(); };
  }
  NoStages others;
  world.model(role).ops().set_stages(&others);
  rlhf::LiveBackend backend(r.job, world.model(role), e, training);
  begin();
  backend.run(phase);
  world.model(role).send_gradients(nullptr);
}

// Executed actions of each kind.
using ActionCounts = std::array<std::int64_t, std::variant_size_v<step::GenerationAction>>;
// What random jobs had.
struct Seen {
  ActionCounts actions{};
  int stages = 0;
  int chunks = 0;           // of these, more than one a stage
  int two_parts = 0;        // and backwards in two parts
  int sliced_parts = 0;     // the same with slices of gradients
  int shared = 0;           // sequences that ranks divide
  int passed = 0;           // of these jobs, those where keys pass round
  int answering = 0;        // of these jobs, those that generate
  int sliced = 0;           // weights of parts of models
  int placed = 0;           // those that divide the model only where it generates
  int replicas = 0;         // of slices
  int added = 0;            // trained models of several ranks whose blocks rest on the host
  int resting = 0;          // and those whose slices do
  int moved = 0;            // of `placed`, those that are divided in training, otherwise
  int staged = 0;           // slices of a stage's weights
  int streamed_stages = 0;  // models whose blocks of a stage rest on the host
  int trained_stages = 0;   // and those that train
  int trained_parts = 0;    // of these, with a backward in two parts
};

std::int64_t peak(const testing::Requests& requests) {
  std::int64_t now = 0, most = 0;
  for (const std::int64_t bytes : requests) most = std::max(most, now += bytes);
  return most;
}

testing::Requests requests_of_plan(const testing::RandomJob& r, const spec::Phase& phase) {
  testing::RecordingSink sink;
  step::CountingOps ops(sink, profile_of(r, phase), 1 << 20);
  count_phase(ops, r.job, r.models, r.dtype, phase, 7);
  EXPECT_TRUE(sink.empty());
  return std::move(sink.requests);
}

testing::Requests requests_of_actions(const testing::RandomJob& r, const spec::Phase& phase,
                                      const testing::RandomRollout& rollout) {
  const ModelRole role = role_of(r.models, phase);
  testing::RecordingSink sink;
  step::CountingOps ops(sink, profile_of(r, phase), 1 << 20);
  step::SlotCache<step::CountedTensor> cache =
      counted_cache(role, r.dtype, r.job.rollout_batch(), r.job.max_sequence_length());
  CountedSource source(rollout.actions, rollout.options.sampling);
  step::run_generation(ops, counted_weights(role, r.dtype), cache, source);
  EXPECT_TRUE(sink.empty());
  return std::move(sink.requests);
}

void compare_generation(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
                        std::uint64_t seed, ActionCounts& counts) {
  const ModelRole role = role_of(r.models, phase);
  ops::Transformer& model = world.generator(role);
  ops::KvCache cache = world.cache(role, r.job.rollout_batch(), r.job.max_sequence_length());
  testing::Requests measured;
  // On a GPU libraries keep what their first call makes.
  for (int runs = testing::test_device().is_cuda() ? 2 : 1; runs > 0; --runs) {
    testing::RandomRollout rollout(r.job, phase, role.shape.vocab_size, seed);
    rlhf::LiveBackend backend(r.job, model,
                              rlhf::LiveGeneration{cache, rollout.prompts, rollout.options});
    testing::start_recording();
    backend.run(phase);
    measured = testing::stop_recording();
    if (runs > 1) continue;
    ASSERT_EQ(testing::difference(measured, requests_of_actions(r, phase, rollout)), "");
    for (const step::GenerationAction& action : rollout.actions) ++counts[action.index()];
  }
  // A plan's steps take their tokens from the host. Where that is the device, those of the step before
  // are in the phase's memory.
  const std::int64_t tokens = testing::test_device().is_cuda() ? 0 : 8 * r.job.rollout_batch();
  EXPECT_LE(peak(measured), peak(requests_of_plan(r, phase)) + tokens);
}

// The same for each of several ranks, which divide what their stage says.
void divide(testing::RandomJob& r, const parallel::Communicator& ranks, std::int64_t stage,
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

// Of several ranks two may slice together.
void compare(std::uint64_t seed, Seen& seen, parallel::Communicator& ranks = alone()) {
  testing::RandomJob r = job_of(seed, ranks.alone());
  if (r.job.context_ranks() > 1) ++seen.shared;
  if (r.job.context_shard().ring) ++seen.passed;
  if (r.job.context_ranks() > 1 && r.job.trains_policy()) ++seen.answering;
  if (r.job.has_generation_placement())
    ++(r.job.parallel.tensor_model_parallel_size > 1 ? seen.moved : seen.placed);
  if (!ranks.alone())
    divide(r, ranks, static_cast<std::int64_t>(seed / 2 % 4),
           ranks.size() % 2 == 0 && seed % 3 == 1 ? 2 : 0);
  const bool staged = take_stage(r, seed, ranks.alone());
  if (staged) {
    ++seen.stages;
    if (r.job.parallel.virtual_pipeline_model_parallel_size > 1) ++seen.chunks;
    if (r.job.parallel.zero_bubble())
      ++(r.job.data_parallel().slices_gradients() ? seen.sliced_parts : seen.two_parts);
    if (r.job.data_parallel().slices_weights()) ++seen.staged;
  }
  if (r.job.data_parallel().slices_weights() && r.job.parallel.tensor_model_parallel_size > 1)
    ++seen.sliced;
  spec::ModelModes modes;
  const spec::Recipe joined = spec::describe(r.job);
  // Odd seeds divide the updates: the same requests, in two phases. Some stream the states, from the host or from disk.
  const spec::UpdateMode streamed =
      seed % 7 < 3 ? spec::UpdateMode::kDisk : spec::UpdateMode::kStreamed;
  if (seed % 2 == 1) {
    for (const spec::ModelId model : joined.trained())
      modes.set(model, seed % 5 < 2 ? streamed : spec::UpdateMode::kSplit);
  }
  // Every third streams the weights that it can, and every other one of these their tables; those that are
  // trained with their states, and some with inputs of blocks. Stages do, too.
  if (seed % 3 == 0 || (staged && seed % 7 < 4)) {
    for (const spec::ModelId model : spec::streamable(joined)) {
      const bool trains = r.models.at(model).trains_blocks();
      modes.stream_weights(model);
      if (staged) ++(trains ? seen.trained_stages : seen.streamed_stages);
      if (staged && trains && r.job.parallel.zero_bubble()) ++seen.trained_parts;
      if (seed % 4 == 1) modes.keep_blocks_on_disk(model);
      if (r.models.at(model).trains_blocks() && r.job.ranks() > 1)
        ++(joined.find(model)->sliced ? seen.resting : seen.added);
      if (seed % 2 == 0 && !(staged && trains)) modes.stream_tables(model);
      if (!staged) modes.set_together(model, 1 + static_cast<std::int64_t>(seed / 3 % 4));
      if (joined.find(model)->trained == nullptr) continue;
      modes.set(model, streamed);
      if (seed % 5 < 3 && !staged) modes.keep_inputs_on_host(model);
    }
  }
  // Every other one takes sliced weights through groups of micro-batches.
  if (r.job.data_parallel().slices_weights() && seed % 2 == 0)
    for (const spec::ModelSource& model : joined.models) modes.set_together(model.id, 2);
  // The world has the ranks that divide batches, whatever else the job divides.
  const spec::DataParallel division = r.job.data_parallel();
  const parallel::Groups groups(
      ranks, spec::Mesh().set(spec::Axis::kData, ranks.size()).set_shards(division.shards()));
  const bool has_replicas = division.slices_states() && division.replicas > 1;
  if (has_replicas) ++seen.replicas;
  AtenWorld world(r, modes, groups.shards(), has_replicas ? &groups.replicas() : nullptr);
  const spec::Recipe recipe = spec::describe(r.job, modes);
  for (const spec::Phase& phase : recipe.phases) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
    const bridge::NoAutograd no_autograd;
    if (phase.body == spec::Body::kGenerate) {
      compare_generation(world, r, phase, seed, seen.actions);
      continue;
    }
    // On a GPU libraries keep what their first call makes.
    if (testing::test_device().is_cuda()) run_live(world, r, phase, [] {});
    run_live(world, r, phase, [] { testing::start_recording(); });
    const testing::Requests measured = testing::stop_recording();
    EXPECT_EQ(testing::difference(measured, requests_of_plan(r, phase)), "");
  }
}

// NEAP_REQUEST_SEEDS=FIRST:COUNT runs other seeds.
TEST(Requests, OfThreeHundredRandomJobsAreThoseOfThePlan) {
  std::uint64_t first = 1, count = 300;
  if (const char* seeds = std::getenv("NEAP_REQUEST_SEEDS"); seeds != nullptr) {
    char* end = nullptr;
    first = std::strtoull(seeds, &end, 10);
    if (*end == ':') count = std::strtoull(end + 1, nullptr, 10);
  }
  Seen seen;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    compare(seed, seen);
    // On a GPU every difference is wanted from one run.
    if (HasFailure() && !testing::test_device().is_cuda()) return;
  }
  if (count < 300) return;
  for (const std::int64_t n : seen.actions) EXPECT_GT(n, 30);
  EXPECT_GT(seen.stages, 10);
  EXPECT_GT(seen.chunks, 0);
  EXPECT_GT(seen.two_parts, 0);
  EXPECT_GT(seen.streamed_stages, 10);
  EXPECT_GT(seen.trained_stages, 0);
  EXPECT_GT(seen.trained_parts, 0);
  EXPECT_GT(seen.shared, 10);
  EXPECT_GT(seen.passed, 10);
  EXPECT_GT(seen.answering, 10);
  EXPECT_GT(seen.placed, 10);
  EXPECT_GT(seen.moved, 10);
}

// Training phases of a random job on one rank of several, whose gradients are all kept or all stepped by it. Odd seeds
// divide the updates.
void for_each_training_phase(
    std::uint64_t seed, testing::CheckedRanks& ranks,
    const std::function<void(AtenWorld&, const testing::RandomJob&, const spec::Phase&)>& visit) {
  const bridge::NoAutograd no_autograd;
  testing::RandomJob r = testing::random_job(seed, testing::test_device().is_cpu());
  divide(r, ranks, static_cast<std::int64_t>(seed / 2 % 2));
  spec::ModelModes modes;
  const spec::Recipe joined = spec::describe(r.job);
  for (const spec::ModelId model : joined.trained()) {
    if (seed % 2 == 1) modes.set(model, spec::UpdateMode::kSplit);
    const std::vector<spec::ModelId> streamable = spec::streamable(joined);
    if (seed % 3 != 0 || std::find(streamable.begin(), streamable.end(), model) == streamable.end())
      continue;
    modes.stream_weights(model);
    if (r.models.at(model).trains_blocks()) modes.set(model, spec::UpdateMode::kStreamed);
    if (seed % 2 == 0) modes.stream_tables(model);
    modes.set_together(model, 1 + static_cast<std::int64_t>(seed / 3 % 4));
  }
  AtenWorld world(r, modes, ranks);
  for (const spec::Phase& phase : spec::describe(r.job, modes).phases)
    if (phase.trains()) visit(world, r, phase);
}

TEST(HandOver, EachUnitGoesOnceBehindItsLastAddend) {
  std::int64_t batches = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    testing::CheckedRanks ranks(static_cast<int>(seed % 2), 2);
    for_each_training_phase(seed, ranks, [&](AtenWorld& world, const auto& r, const auto& phase) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
      run_live(
          world, r, phase, [] {}, true);
      EXPECT_EQ(ranks.wrong(), "");
      const std::vector<std::int64_t> handed = ranks.take_elements();
      if (phase.part == spec::TrainPart::kUpdate) {
        EXPECT_TRUE(handed.empty());
        return;
      }
      std::int64_t all = 0;
      for (const spec::FlatUnit& unit : trained_units(role_of(r.models, phase)))
        all += unit.elements;
      EXPECT_EQ(
          handed,
          std::vector<std::int64_t>(
              static_cast<std::size_t>(spec::update_shape(r.job, phase.body).updates()), all));
      batches += std::ssize(handed);
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(batches, 60);
}

TEST(HandOver, OneThatFailsEndsThePhase) {
  std::int64_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    testing::CheckedRanks ranks(0, 2);
    for_each_training_phase(seed, ranks, [&](AtenWorld& world, const auto& r, const auto& phase) {
      if (phase.part == spec::TrainPart::kUpdate) return;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
      ranks.fail_at(-1);
      run_live(
          world, r, phase, [] {}, true);
      const std::int64_t calls = ranks.calls();
      EXPECT_GE(calls, 1);
      for (const std::int64_t k : std::set{std::int64_t{0}, calls / 2, calls - 1}) {
        ranks.fail_at(k);
        try {
          run_live(
              world, r, phase, [] {}, true);
          ADD_FAILURE() << "call " << k << " of " << calls << " did not fail";
        } catch (const Error& e) {
          EXPECT_STREQ(e.what(), "made to fail");
          EXPECT_EQ(ranks.calls(), k + 1);
        }
        ranks.forget();
        ++failures;
      }
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(failures, 20);
}

// Under mpirun: every rank's are those of the plan for it, whatever the ranks divide.
TEST(RequestsOfRanks, AreThoseOfThePlanForEach) {
  const parallel::Environment environment = value_or_throw(parallel::Environment::detect());
  if (environment.size == 1) GTEST_SKIP() << "one rank";
  const std::unique_ptr<parallel::Communicator> ranks = parallel::connect(environment, {});
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    compare(seed, seen, *ranks);
    if (ranks->any(HasFailure())) return;
  }
  EXPECT_GT(seen.sliced, 3);
  EXPECT_GT(seen.staged, 1);
  EXPECT_GT(seen.sliced_parts, 1);
  if (ranks->size() % 2 == 0) {
    EXPECT_GT(seen.replicas, 3);
  }
  EXPECT_GT(seen.added, 5);
  EXPECT_GT(seen.resting, 2);
}

}  // namespace
}  // namespace neap::plan
