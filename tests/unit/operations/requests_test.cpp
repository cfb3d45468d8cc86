// Random jobs: every phase, run by the trainer's backend with libtorch, asks for the tensors that the
// plan's backend counts, request by request. A generation goes on by its tokens: its own actions are
// counted, and the plan's take at least as much memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "bridge/no_autograd.h"
#include "bridge/runtime.h"
#include "conformance.h"
#include "model/transformer.h"
#include "parallel/communicator.h"
#include "plan/counted_backend.h"
#include "plan/counted_source.h"
#include "random_job.h"
#include "random_rollout.h"
#include "rlhf/live_backend.h"
#include "train/optimizer.h"

namespace neap::plan {
namespace {

using step::Dtype;

// Memory on the host of tables, and a slot for their turns.
struct CopiedTables {
  std::vector<at::Tensor> weights, gradients;
  step::TableUnits turns;
  at::Tensor slot, gradient_slot;
};

// One kind of what comes and goes: of each block, and a slot's; empty where there is none.
struct CopiedKind {
  std::vector<at::Tensor> units, slots;
};

// Slots that blocks, their gradients and inputs are copied to from memory of the whole model.
class CopiedBlocks final : public step::BlockSlots {
 public:
  CopiedBlocks(CopiedKind weights, CopiedKind gradients, CopiedKind inputs, CopiedTables tables)
      : window_(weights.units.size(), weights.slots.size(),
                {!gradients.units.empty(), !inputs.units.empty()}, tables.turns.breaks()),
        turns_(tables.turns, !gradients.units.empty()),
        tables_(std::move(tables)),
        weights_(std::move(weights)),
        gradients_(std::move(gradients)),
        inputs_(std::move(inputs)) {}
  void set_input_bytes(std::int64_t bytes) override {
    const at::Tensor& slot = inputs_.slots.front();
    ASSERT_LE(bytes, static_cast<std::int64_t>(slot.nbytes()));
  }
  [[nodiscard]] step::TableUnits tables() const override { return tables_.turns; }
  [[nodiscard]] step::TableTurns::Turn use_table(step::Table table, step::BlockUse how) override {
    turn_ = turns_.take(table, how);
    window_.clear();
    if (turn_.weights) copy(tables_.slot, tables_.weights[turn_.unit]);
    if (turn_.gradients) copy(tables_.gradient_slot, tables_.gradients[turn_.unit]);
    return turn_;
  }
  void release_table() noexcept override {
    if (turn_.adds) copy(tables_.gradients[turn_.unit], tables_.gradient_slot);
    bring_expected();
  }
  void expect(step::Sweep sweep, std::int64_t passes) override {
    turns_.expect(sweep, passes);
    window_.expect(sweep, passes);
    bring_expected();
  }
  [[nodiscard]] Place use(std::size_t block, step::BlockUse how) override {
    const step::BlockWindow::Use use = window_.use(block, how);
    bring(use.missing);
    return {use.missing.slot, use.zero, use.last};
  }
  void release(std::size_t block) noexcept override {
    const step::BlockWindow::Leaving leaving = window_.release(block);
    if (leaving.gradients) copy(gradients_.units[block], gradients_.slots[leaving.slot]);
    if (leaving.inputs) copy(inputs_.units[block], inputs_.slots[leaving.slot]);
    bring_expected();
  }

 private:
  static void copy(const at::Tensor& to, const at::Tensor& from) {
    const std::int64_t n = std::min(to.size(0), from.size(0));
    to.narrow(0, 0, n).copy_(from.narrow(0, 0, n));
  }
  void bring(step::BlockWindow::Place place) {
    if (place.weights) copy(weights_.slots[place.slot], weights_.units[place.block]);
    if (place.gradients) copy(gradients_.slots[place.slot], gradients_.units[place.block]);
    if (place.inputs) copy(inputs_.slots[place.slot], inputs_.units[place.block]);
  }
  void bring_expected() {
    while (const auto place = window_.next_to_bring()) bring(*place);
  }
  step::BlockWindow window_;
  step::TableTurns turns_;
  step::TableTurns::Turn turn_;
  CopiedTables tables_;
  CopiedKind weights_, gradients_, inputs_;
};

// Models and batches of a job with memory of their own, kept from one phase to the next.
class AtenWorld {
 public:
  AtenWorld(const testing::RandomJob& random, const spec::ModelModes& modes)
      : job_(random.job),
        modes_(modes),
        options_(at::dtype(model::to_aten(random.dtype)).device(testing::test_device())) {}
  [[nodiscard]] Dtype dtype() const { return model::to_step(options_.dtype().toScalarType()); }

  [[nodiscard]] model::Transformer& model(const ModelRole& role) {
    const Outside outside;
    return *model_of(role).transformer;
  }
  /// Of streamed weights all blocks together.
  [[nodiscard]] model::Transformer& generator(const ModelRole& role) {
    const Outside outside;
    Model& m = model_of(role);
    return m.generator ? *m.generator : *m.transformer;
  }
  [[nodiscard]] std::vector<step::TrainedUnit<at::Tensor>> units(const ModelRole& role) {
    const Outside outside;
    Model& m = model_of(role);
    const auto& weights = role.lora.rank > 0 ? m.adapters : m.weights;
    std::vector<step::TrainedUnit<at::Tensor>> out;
    const std::vector<bool> rests = on_host(role, hosted(role));
    for (const spec::FlatUnit& unit : trained_units(role)) {
      const std::size_t u = out.size();
      out.push_back(step::make_trained_unit(
          optimizer_of(role, dtype()), unit, std::ssize(out), weights[u], m.grads[u],
          [this](const spec::StateTensor& t) {
            return at::zeros({t.elements}, options_.dtype(model::to_aten(t.dtype)));
          }));
      out.back().on_host = rests[u];
    }
    return out;
  }
  [[nodiscard]] model::KvCache cache(const ModelRole& role, std::int64_t batch,
                                     std::int64_t tokens) {
    const Outside outside;
    return model::KvCache::over(
        at::zeros({model::KvCache::elements(role.shape, batch, tokens)}, options_), role.shape,
        batch, tokens);
  }
  [[nodiscard]] at::Tensor host(const step::Shape& shape, Dtype dtype) {
    const Outside outside;
    return at::zeros({shape.begin(), shape.rank()}, model::to_aten(dtype));
  }

  [[nodiscard]] HostedUnits hosted(const ModelRole& role) const {
    return {modes_.streams_weights(role.id), modes_.streams_tables(role.id)};
  }

 private:
  // What is there before a phase.
  struct Outside {
    bridge::HostScope host;
    testing::Unrecorded unrecorded;
  };
  struct Model {
    std::vector<at::Tensor> weights, adapters, grads;
    std::unique_ptr<CopiedBlocks> blocks;
    std::unique_ptr<model::Transformer> transformer, generator;
  };
  // By what the passes see of a role: the reference shares the actor's base without its adapter.
  Model& model_of(const ModelRole& role) {
    Model& m = models_[{role.id, role.lora.rank > 0}];
    if (m.transformer) return m;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head))
      m.weights.push_back(at::rand({unit.elements}, at::kFloat).mul_(0.02).to(options_));
    std::optional<model::Lora> lora;
    model::FlatTensors base{m.weights, {}};
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora))
        m.adapters.push_back(at::zeros({unit.elements}, options_));
      lora = model::Lora{role.lora, {m.adapters, {}}};
    }
    if (role.trained) {
      for (const spec::FlatUnit& unit : trained_units(role))
        m.grads.push_back(at::zeros({unit.elements}, options_.dtype(model::to_aten(
                                                         optimizer_of(role, dtype()).gradients))));
      (lora ? lora->adapters.grads : base.grads) = m.grads;
    }
    const std::optional<model::StreamedBase> streamed = streamed_base(m, role);
    if (streamed && role.generates)
      m.generator = std::make_unique<model::Transformer>(role.shape, role.head,
                                                         model::FlatTensors{m.weights, {}}, lora);
    if (streamed && streamed->table_on_host) base.weights.front() = base.weights.front().cpu();
    m.transformer =
        std::make_unique<model::Transformer>(role.shape, role.head, base, lora, streamed);
    return m;
  }
  std::optional<model::StreamedBase> streamed_base(Model& m, const ModelRole& role) {
    const HostedUnits rests = hosted(role);
    if (!rests.blocks) return std::nullopt;
    const bool trained = role.trains_blocks();
    CopiedKind blocks, gradients, inputs;
    const std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (units[u].block < 0) continue;
      blocks.units.push_back(m.weights[u].clone());
      if (trained) gradients.units.push_back(m.grads[u].clone());
      if (modes_.inputs_on_host(role.id)) inputs.units.push_back(group_inputs(role));
    }
    for (CopiedKind* kind : {&blocks, &gradients, &inputs}) kind->slots = slots_for(kind->units);
    const HostedTables tables = hosted_tables(role, rests.tables);
    CopiedTables copied;
    copied.turns = tables.turns;
    for (const spec::FlatUnit& unit : tables.units) {
      const auto u = static_cast<std::size_t>(
          std::find_if(units.begin(), units.end(), [&](auto& x) { return x.name == unit.name; }) -
          units.begin());
      copied.weights.push_back(m.weights[u].clone());
      if (trained) copied.gradients.push_back(m.grads[u].clone());
    }
    if (tables.turns.any()) {
      copied.slot = largest_like(copied.weights);
      if (trained) copied.gradient_slot = largest_like(copied.gradients);
    }
    m.blocks = std::make_unique<CopiedBlocks>(blocks, gradients, inputs, copied);
    return model::StreamedBase{m.blocks.get(),     blocks.slots, gradients.slots,
                               inputs.slots,       copied.slot,  copied.gradient_slot,
                               tables.gives_rows()};
  }
  // As large as the plan's.
  [[nodiscard]] at::Tensor group_inputs(const ModelRole& role) const {
    const spec::Recipe recipe = spec::describe(job_, modes_);
    for (const spec::Phase& phase : recipe.phases) {
      if (phase.model != role.id || !phase.inputs_on_host) continue;
      const std::int64_t rows = std::min(phase.together, micro_batches(job_, phase)) *
                                micro_batch_spans(job_, phase).rows();
      return at::zeros({rows * role.shape.hidden_size}, options_);
    }
    return {};
  }
  [[nodiscard]] static at::Tensor largest_like(const std::vector<at::Tensor>& tensors) {
    return at::zeros_like(*std::max_element(
        tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.size(0) < b.size(0); }));
  }
  [[nodiscard]] static std::vector<at::Tensor> slots_for(const std::vector<at::Tensor>& blocks) {
    std::vector<at::Tensor> slots;
    for (std::size_t i = 0; i < kBlockSlots && !blocks.empty(); ++i)
      slots.push_back(largest_like(blocks));
    return slots;
  }

  const spec::Job& job_;
  spec::ModelModes modes_;
  at::TensorOptions options_;
  std::map<std::pair<spec::ModelId, bool>, Model> models_;
};

parallel::Communicator& alone() {
  static const auto communicator = parallel::make_single();
  return *communicator;
}

// Every unit of an update, or every part where states are streamed; slots are the tensors themselves.
void for_each_part(const AtenWorld& world, const ModelRole& role, const spec::Phase& phase,
                   model::AtenOps& ops, const std::vector<train::OptimizerUnit>& units,
                   const rlhf::LiveTraining::VisitPart& visit) {
  if (!phase.streams_states) {
    for (const train::OptimizerUnit& unit : units) visit(unit);
    return;
  }
  const step::UpdateParts parts = update_parts(role, world.dtype(), world.hosted(role));
  for (const step::UpdatePart& part : parts.list()) {
    const train::OptimizerUnit& unit = units[part.unit];
    const auto in_slot = [&](const step::PartTensor& t) {
      using Kind = step::PartTensor::Kind;
      const at::Tensor& whole = t.kind == Kind::kWeights     ? unit.weights
                                : t.kind == Kind::kGradients ? unit.gradients
                                                             : unit.state[t.state];
      return whole.narrow(0, t.elements == part.count ? part.first : 0, t.elements);
    };
    visit(step::part_of(ops, unit, part, parts.layout(part), in_slot));
  }
}

// A phase as the trainer runs it, on data of the plan's sizes.
void run_live(AtenWorld& world, const testing::RandomJob& r, const spec::Phase& phase,
              const std::function<void()>& begin) {
  const ModelRole role = role_of(r.models, phase);
  const auto host = [&](const step::Shape& shape, Dtype dtype) { return world.host(shape, dtype); };
  const step::KernelProfile profile = testing::test_profile();
  const auto e =
      PhaseInputs<at::Tensor, decltype(host)>(r.job, profile, host).experience(role.shape, phase);
  std::optional<train::Optimizer> optimizer;
  rlhf::LiveTraining training;
  if (phase.trains()) {
    optimizer.emplace(role.optimizer, optimizer_of(role, r.dtype), 7, world.units(role), alone());
    training.optimizer = &*optimizer;
    training.checkpointing = &role.checkpointing;
    training.updates = {0, spec::update_shape(r.job, phase.body).updates()};
    training.learning_rate = [](std::int64_t) { return 1e-3; };
    training.scale = [](std::int64_t) { return step::LossScale{1, 1, 1}; };
    training.for_each_part = [&](const auto& visit) {
      for_each_part(world, role, phase, world.model(role).ops(), optimizer->units(), visit);
    };
  }
  rlhf::LiveBackend backend(r.job, world.model(role), e, training);
  begin();
  backend.run(phase);
}

// Executed actions of each kind.
using ActionCounts = std::array<std::int64_t, std::variant_size_v<step::GenerationAction>>;

std::int64_t peak(const testing::Requests& requests) {
  std::int64_t now = 0, most = 0;
  for (const std::int64_t bytes : requests) most = std::max(most, now += bytes);
  return most;
}

testing::Requests requests_of_plan(const testing::RandomJob& r, const spec::Phase& phase) {
  testing::RecordingSink sink;
  step::CountingOps ops(sink, testing::test_profile(), 1 << 20);
  count_phase(ops, r.job, r.models, r.dtype, phase, 7);
  EXPECT_TRUE(sink.empty());
  return std::move(sink.requests);
}

testing::Requests requests_of_actions(const testing::RandomJob& r, const spec::Phase& phase,
                                      const testing::RandomRollout& rollout) {
  const ModelRole role = role_of(r.models, phase);
  testing::RecordingSink sink;
  step::CountingOps ops(sink, testing::test_profile(), 1 << 20);
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
  model::Transformer& model = world.generator(role);
  model::KvCache cache = world.cache(role, r.job.rollout_batch(), r.job.max_sequence_length());
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

void compare(std::uint64_t seed, ActionCounts& counts) {
  const testing::RandomJob r = testing::random_job(seed);
  spec::ModelModes modes;
  const spec::Recipe joined = spec::describe(r.job);
  // Odd seeds divide the updates: the same requests, in two phases. Some stream the states.
  if (seed % 2 == 1) {
    for (const spec::ModelId model : joined.trained())
      modes.set(model, seed % 5 < 2 ? spec::UpdateMode::kStreamed : spec::UpdateMode::kSplit);
  }
  // Every third streams the weights that it can, and every other one of these their tables; those that are
  // trained with their states, and some with inputs of blocks.
  if (seed % 3 == 0) {
    for (const spec::ModelId model : spec::streamable(joined)) {
      modes.stream_weights(model);
      if (seed % 2 == 0) modes.stream_tables(model);
      modes.set_together(model, 1 + static_cast<std::int64_t>(seed / 3 % 4));
      if (joined.find(model)->trained == nullptr) continue;
      modes.set(model, spec::UpdateMode::kStreamed);
      if (seed % 5 < 3) modes.keep_inputs_on_host(model);
    }
  }
  AtenWorld world(r, modes);
  const spec::Recipe recipe = spec::describe(r.job, modes);
  for (const spec::Phase& phase : recipe.phases) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
    const bridge::NoAutograd no_autograd;
    if (phase.body == spec::Body::kGenerate) {
      compare_generation(world, r, phase, seed, counts);
      continue;
    }
    // On a GPU libraries keep what their first call makes.
    if (testing::test_device().is_cuda()) run_live(world, r, phase, [] {});
    run_live(world, r, phase, [] { testing::start_recording(); });
    const testing::Requests measured = testing::stop_recording();
    ASSERT_EQ(testing::difference(measured, requests_of_plan(r, phase)), "");
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
  ActionCounts counts{};
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    compare(seed, counts);
    // On a GPU every difference is wanted from one run.
    if (HasFatalFailure() && !testing::test_device().is_cuda()) return;
  }
  if (count < 300) return;
  for (const std::int64_t n : counts) EXPECT_GT(n, 30);
}

}  // namespace
}  // namespace neap::plan
