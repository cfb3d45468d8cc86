// Random jobs: every phase, run by the trainer's backend with libtorch, asks for the tensors that the
// plan's backend counts, request by request. A generation goes on by its tokens: its own actions are
// counted, and the plan's take at least as much memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "aten_world.h"
#include "bridge/no_autograd.h"
#include "conformance.h"
#include "divided_job.h"
#include "live_phase.h"
#include "ops/transformer.h"
#include "parallel/communicator.h"
#include "parallel/groups.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/counted_model.h"
#include "plan/counting/counted_source.h"
#include "random_job.h"
#include "random_rollout.h"
#include "rlhf/trainer/live_backend.h"

namespace neap::plan {
namespace {

parallel::Communicator& alone() {
  static const auto kAlone = parallel::make_single();
  return *kAlone;
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
  int inputs = 0;           // trained models whose layer inputs alone are on the host
  int staged_inputs = 0;    // the same of a stage
  int sliced_inputs = 0;    // and inputs of sliced ones
  int reading = 0;          // those that train from kept experience
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

struct CountedActions {
  testing::Requests requests;
  std::uint64_t graph_scratch = 0;
};
CountedActions count_actions(const testing::RandomJob& r, const spec::Phase& phase,
                             const testing::RandomRollout& rollout, bool graphs) {
  const ModelRole role = role_of(r.models, phase);
  testing::RecordingSink sink;
  step::KernelProfile profile = profile_of(r, phase);
  profile.graphs = graphs;
  step::CountingOps ops(sink, profile, 1 << 20);
  step::AnyCache<step::CountedTensor> any = counted_cache(role, r.dtype, step::cache_shape(r.job));
  CountedSource source(rollout.actions, rollout.options.sampling);
  std::visit(
      [&](auto& cache) {
        step::run_generation(ops, counted_weights(role, r.dtype), cache, source);
      },
      any);
  EXPECT_TRUE(sink.empty());
  return {std::move(sink.requests), ops.graphs_made().scratch()};
}

void compare_generation(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
                        std::uint64_t seed, ActionCounts& counts) {
  const ModelRole role = role_of(r.models, phase);
  ops::Transformer& model = world.generator(role);
  ops::AnyKvCache cache = world.cache(role, step::cache_shape(r.job));
  testing::Requests measured;
  // On a GPU libraries keep what their first call makes, and the third run decodes in graphs.
  const bool cuda = testing::test_device().is_cuda();
  std::uint64_t graph_scratch = 0;
  std::vector<rollout::Response> first;
  for (int runs = cuda ? 3 : 1; runs > 0; --runs) {
    testing::RandomRollout rollout(r.job, phase, role.shape.vocab_size, seed);
    const bool graphs = cuda && runs == 1 && graph_scratch > 0;
    if (graphs) {
      rollout.options.graphs =
          at::empty({static_cast<std::int64_t>(graph_scratch)},
                    at::TensorOptions().dtype(at::kByte).device(model.device()));
    }
    rlhf::LiveBackend backend(r.job, model,
                              rlhf::LiveGeneration{cache, rollout.prompts, rollout.options});
    testing::start_recording();
    backend.run(phase);
    measured = testing::stop_recording();
    std::vector<rollout::Response> responses = backend.take_responses();
    if (first.empty())
      first = std::move(responses);
    else
      EXPECT_TRUE(responses == first);
    if (runs == 3) continue;
    ASSERT_EQ(testing::difference(measured, count_actions(r, phase, rollout, graphs).requests), "");
    if (runs == 2) {
      graph_scratch = count_actions(r, phase, rollout, true).graph_scratch;
      continue;
    }
    for (const step::GenerationAction& action : rollout.actions) ++counts[action.index()];
  }
  // A plan's steps take their tokens from the host. Where that is the device, those of the step before
  // are in the phase's memory.
  std::int64_t tokens = testing::test_device().is_cuda() ? 0 : 8 * r.job.rollout_batch();
  // Tokens and log-probabilities that are read together; plans of the host read each step.
  tokens += std::int64_t{5} * 16 * r.job.rollout_batch();
  EXPECT_LE(peak(measured), peak(requests_of_plan(r, phase)) + tokens);
}

spec::StepModes modes_of(std::uint64_t seed, const testing::RandomJob& r, bool staged, Seen& seen) {
  spec::StepModes modes;
  const spec::Recipe joined = spec::describe(r.job);
  // Odd seeds divide the updates: the same requests, in two phases. Some stream the states, from the host or from disk.
  const spec::UpdateMode streamed =
      seed % 7 < 3 ? spec::UpdateMode::kDisk : spec::UpdateMode::kStreamed;
  if (seed % 2 == 1) {
    for (const spec::ModelId model : joined.trained())
      modes.of(model).update = seed % 5 < 2 ? streamed : spec::UpdateMode::kSplit;
  }
  // Every third streams the weights that it can, and every other one of these their tables; those that are
  // trained with their states, and some with inputs of blocks. Stages do, too.
  if (seed % 3 == 0 || (staged && seed % 7 < 4)) {
    for (const spec::ModelId model : spec::streamable(joined)) {
      const bool trains = r.models.at(model).trains_blocks();
      spec::ModelHomes& homes = modes.of(model);
      homes.layers = seed % 4 == 1 ? spec::Home::kDisk : spec::Home::kHost;
      if (staged) ++(trains ? seen.trained_stages : seen.streamed_stages);
      if (staged && trains && r.job.parallel.zero_bubble()) ++seen.trained_parts;
      if (r.models.at(model).trains_blocks() && r.job.ranks() > 1)
        ++(joined.find(model)->storage.shards_weights ? seen.resting : seen.added);
      if (seed % 2 == 0 && !(staged && trains)) homes.tables = spec::Home::kHost;
      if (!staged) homes.together = 1 + static_cast<std::int64_t>(seed / 3 % 4);
      if (joined.find(model)->trained == nullptr) continue;
      homes.update = streamed;
      if (seed % 5 < 3) homes.inputs = spec::Home::kHost;
    }
  }
  // Some keep only inputs of blocks on the host.
  if (seed % 7 == 5)
    for (const spec::ModelId model : joined.trained()) {
      spec::ModelHomes& homes = modes.of(model);
      homes.inputs = spec::Home::kHost;
      if (homes.layers == spec::Home::kDevice) ++(staged ? seen.staged_inputs : seen.inputs);
      if (joined.find(model)->storage.shards_weights) ++seen.sliced_inputs;
    }
  // Every other one takes sliced weights through groups of micro-batches.
  if (r.job.data_parallel().slices_weights() && seed % 2 == 0)
    for (const spec::ModelSource& model : joined.models) modes.of(model.id).together = 2;
  // Some take logits in chunks of a few rows.
  if (seed % 4 == 3)
    modes.logits_chunk = 5 * r.models.at(joined.models.front().id).shape.vocab_size;
  return modes;
}

// Two of several ranks may slice together.
// With `reads_experience`, jobs that train a policy have no rollout.
void compare(std::uint64_t seed, Seen& seen, parallel::Communicator& ranks = alone(),
             bool reads_experience = false) {
  // Requests do not depend on threads, which wait for each other in kernels of tiny models.
  static const int kThreads = at::get_num_threads();
  at::set_num_threads(seed % 4 == 0 ? kThreads : 1);
  testing::RandomJob r = job_of(seed, ranks.alone());
  if (reads_experience) {
    if (!r.job.trains_policy()) return;
    r.job.trainer.experience = "read";
    ++seen.reading;
  }
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
  const spec::StepModes modes = modes_of(seed, r, staged, seen);
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
  // The CPU reads tokens with every action.
  const std::size_t reads = step::GenerationAction(step::ReadTokens{}).index();
  for (std::size_t i = 0; i < seen.actions.size(); ++i) {
    if (i != reads) {
      EXPECT_GT(seen.actions[i], 30) << i;
    }
  }
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
  EXPECT_GT(seen.inputs, 10);
  EXPECT_GT(seen.staged_inputs, 1);
}

TEST(Requests, OfJobsWithKeptExperienceAreThoseOfThePlan) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    compare(seed, seen, alone(), /*reads_experience=*/true);
    if (HasFailure()) return;
  }
  EXPECT_GT(seen.reading, 10);
  EXPECT_EQ(seen.actions, ActionCounts{});  // nothing generates
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
  EXPECT_GT(seen.sliced_inputs, 1);
  EXPECT_GT(seen.resting, 2);
}

}  // namespace
}  // namespace neap::plan
