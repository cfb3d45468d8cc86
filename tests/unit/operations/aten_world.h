// Models and batches of a random job with memory of their own: what the trainer's backend runs on in tests.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bridge/runtime.h"
#include "conformance.h"
#include "mute_ranks.h"
#include "ops/transformer.h"
#include "parallel/communicator.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/tags.h"
#include "random_job.h"
#include "step/units/block_buffers.h"
#include "step/units/gradient_slots.h"
#include "train/optimizer.h"
#include "train/sliced_weights.h"

namespace neap::plan {

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
  void begin_mini_batch(std::int64_t passes_back) override {
    turns_.begin_mini_batch(passes_back);
    window_.begin_mini_batch(passes_back);
  }
  void expect(step::Sweep sweep, std::int64_t passes, const spec::BlockChunk& chunk) override {
    turns_.expect(sweep, passes);
    window_.expect(sweep, passes, chunk);
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
    if (!to.defined()) return;  // only inputs come and go
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

/// What has the part of each model and of each sequence that the job's rank has.
inline const ModelRole& first_role(const testing::RandomJob& r) {
  return *(r.models.actor ? r.models.actor : r.models.reward);
}
inline testing::MuteRanks tensor_ranks(const testing::RandomJob& r) {
  const spec::TensorShard& shard = first_role(r).shape.tensor;
  return {static_cast<int>(shard.rank), static_cast<int>(shard.ranks)};
}
inline testing::MuteRanks context_ranks(const testing::RandomJob& r) {
  return {static_cast<int>(first_role(r).context_rank), static_cast<int>(r.job.context_ranks())};
}

// Models and batches of a job with memory of their own, kept from one phase to the next.
class AtenWorld {
 public:
  /// `ranks`: that divide batches, and slice together. `replicas`: with the same slices; null: none.
  AtenWorld(const testing::RandomJob& random, const spec::StepModes& modes,
            parallel::Communicator& ranks, parallel::Communicator* replicas = nullptr)
      : job_(random.job),
        modes_(modes),
        options_(at::dtype(bridge::to_aten(random.dtype)).device(testing::test_device())),
        ranks_(ranks),
        replicas_(replicas),
        tensor_(tensor_ranks(random)),
        context_(context_ranks(random)) {}
  [[nodiscard]] parallel::Communicator& ranks() const { return ranks_; }
  [[nodiscard]] Dtype dtype() const { return bridge::to_step(options_.dtype().toScalarType()); }

  [[nodiscard]] ops::Transformer& model(const ModelRole& role) {
    const Outside outside;
    return *model_of(role).transformer;
  }
  /// Of streamed weights all blocks together, and what ranks divide where it generates a part of its own.
  [[nodiscard]] ops::Transformer& generator(const ModelRole& role) {
    const Outside outside;
    if (role.generation_part) return divided_generator(role);
    Model& m = model_of(role);
    return m.generator ? *m.generator : *m.transformer;
  }
  [[nodiscard]] std::vector<step::TrainedUnit<at::Tensor>> units(const ModelRole& role) {
    const Outside outside;
    Model& m = model_of(role);
    const auto& weights = role.lora.rank > 0 ? m.adapters : m.weights;
    std::vector<step::TrainedUnit<at::Tensor>> out;
    const std::vector<bool> rests = on_host(role, storage(role));
    for (const spec::FlatUnit& unit : trained_units(role)) {
      const std::size_t u = out.size();
      out.push_back(step::make_trained_unit(
          optimizer_of(role, dtype()), unit, std::ssize(out), weights[u], m.grads[u],
          [this](const spec::StateTensor& t) {
            return at::zeros({t.elements}, options_.dtype(bridge::to_aten(t.dtype)));
          }));
      out.back().on_host = rests[u];
    }
    return out;
  }
  /// What this rank steps where states are sliced, with memory of its own for sliced gradients.
  [[nodiscard]] std::optional<train::OptimizerSlice> slice(
      const ModelRole& role, const std::vector<step::TrainedUnit<at::Tensor>>& units) {
    const Outside outside;
    train::OptimizerSlice out{placement(role), {}};
    if (!out.placement.sliced()) return std::nullopt;
    out.weights = storage(role).shards_weights && role.trains_blocks();
    out.replicas = replicas_;
    for (const spec::Piece& piece : out.placement.pieces(ranks_.rank())) {
      out.pieces.push_back(step::make_piece(
          model(role).ops(), units[piece.unit], piece, out.placement.state(piece),
          [this](const spec::StateTensor& t) {
            return at::zeros({t.elements}, options_.dtype(bridge::to_aten(t.dtype)));
          }));
      at::Tensor& gradients = out.pieces.back().gradients;
      if (out.placement.slices_gradients()) gradients = at::zeros_like(gradients);
    }
    return out;
  }
  /// Takes gradients to the slice.
  [[nodiscard]] std::unique_ptr<step::GradientSlots<ops::AtenOps>> sink(
      const ModelRole& role, const std::vector<step::TrainedUnit<at::Tensor>>& units,
      const train::OptimizerSlice& slice) {
    std::vector<step::GradientSlots<ops::AtenOps>::Unit> slots;
    slots.reserve(units.size());
    for (const auto& unit : units) slots.push_back({unit.unit, unit.gradients});
    return std::make_unique<step::GradientSlots<ops::AtenOps>>(
        model(role).ops(), std::move(slots), slice.pieces, role.shape, role.head,
        step::GradientSlots<ops::AtenOps>::Sums{
            [this, placement = slice.placement](std::size_t unit, const at::Tensor& gradients) {
              return ranks_.begin_sums({{gradients, placement.counts(unit)}});
            },
            [this](std::int64_t begun) { ranks_.wait_for(begun); }});
  }
  [[nodiscard]] ops::AnyKvCache cache(const ModelRole& role, const step::CacheShape& shape) {
    const Outside outside;
    return ops::cache_over(
        at::zeros({ops::KvCache::elements(role.shape, 1, shape.tokens())}, options_),
        at::zeros({shape.rows * shape.row_pages()}, options_.dtype(at::kLong)), role.shape, shape);
  }
  [[nodiscard]] at::Tensor host(const step::Shape& shape, Dtype dtype) {
    const Outside outside;
    return at::zeros({shape.begin(), shape.rank()}, bridge::to_aten(dtype));
  }

  [[nodiscard]] spec::ModelStorage storage(const ModelRole& role) const {
    return spec::describe(job_, modes_).find(role.id)->storage;
  }

 private:
  // Gradients of blocks on the host are there whole.
  [[nodiscard]] spec::StatePlacement placement(ModelRole role) const {
    if (storage(role).streams_layers() && role.trains_blocks())
      role.ranks.zero_stage = std::min<std::int64_t>(role.ranks.zero_stage, 1);
    return placement_of(role, dtype());
  }
  // What is there before a phase.
  struct Outside {
    bridge::HostScope host;
    testing::Unrecorded unrecorded;
  };
  struct Model {
    std::vector<at::Tensor> weights, adapters, grads;
    std::unique_ptr<CopiedBlocks> blocks;
    std::unique_ptr<train::SlicedWeights> sliced;
    std::unique_ptr<ops::Transformer> transformer, generator;
  };
  // By what the passes see of a role: the reference shares the actor's base without its adapter.
  Model& model_of(const ModelRole& role) {
    Model& m = models_[{role.id, role.lora.rank > 0}];
    if (m.transformer) return m;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head))
      m.weights.push_back(at::rand({unit.elements}, at::kFloat).mul_(0.02).to(options_));
    std::optional<ops::Lora> lora;
    ops::FlatTensors base{m.weights, {}};
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora))
        m.adapters.push_back(at::zeros({unit.elements}, options_));
      lora = ops::Lora{role.lora, {m.adapters, {}}};
    }
    if (role.trained) {
      for (const spec::FlatUnit& unit : trained_units(role))
        m.grads.push_back(at::zeros({unit.elements}, options_.dtype(bridge::to_aten(
                                                         optimizer_of(role, dtype()).gradients))));
      (lora ? lora->adapters.grads : base.grads) = m.grads;
    }
    const std::optional<ops::StreamedBase> streamed = streamed_base(m, role);
    if (streamed && streamed->slots != nullptr && role.generates)
      m.generator =
          std::make_unique<ops::Transformer>(role.shape, role.head, ops::FlatTensors{m.weights, {}},
                                             lora, std::nullopt, kernels(), peers());
    if (m.sliced) base.weights = m.sliced->places();
    if (streamed && streamed->table_on_host) base.weights.front() = base.weights.front().cpu();
    m.transformer = std::make_unique<ops::Transformer>(role.shape, role.head, base, lora, streamed,
                                                       kernels(), peers());
    return m;
  }
  // `role` has the shape of the part.
  ops::Transformer& divided_generator(const ModelRole& role) {
    if (divided_) return *divided_;
    const spec::TensorShard& shard = role.shape.tensor;
    std::vector<at::Tensor> weights, adapters;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head))
      weights.push_back(at::rand({unit.elements}, at::kFloat).mul_(0.02).to(options_));
    std::optional<ops::Lora> lora;
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora))
        adapters.push_back(at::zeros({unit.elements}, options_));
      lora = ops::Lora{role.lora, {adapters, {}}};
    }
    dividing_.emplace(static_cast<int>(shard.rank), static_cast<int>(shard.ranks));
    divided_ = std::make_unique<ops::Transformer>(role.shape, role.head,
                                                  ops::FlatTensors{weights, {}}, lora, std::nullopt,
                                                  kernels(), ops::Peers{&*dividing_, &context_});
    return *divided_;
  }
  [[nodiscard]] bridge::KernelChoice kernels() const {
    return testing::test_kernels(job_.device.multiplies_in_fp8());
  }
  [[nodiscard]] ops::Peers peers() { return {&tensor_, &context_}; }
  std::optional<ops::StreamedBase> streamed_base(Model& m, const ModelRole& role) {
    const spec::ModelStorage stored = storage(role);
    if (!stored.streams_layers()) {
      std::optional<ops::StreamedBase> out;
      if (stored.shards_weights) out = sliced_base(m, role);
      if (stored.streams_inputs()) add_inputs(m, role, out ? *out : out.emplace());
      return out;
    }
    const bool trained = role.trains_blocks();
    CopiedKind blocks, gradients, inputs;
    const std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (units[u].block < 0) continue;
      blocks.units.push_back(m.weights[u].clone());
      if (trained) gradients.units.push_back(m.grads[u].clone());
      if (stored.streams_inputs()) inputs.units.push_back(group_inputs(role));
    }
    for (CopiedKind* kind : {&blocks, &gradients, &inputs}) kind->slots = slots_for(kind->units);
    const HostedTables tables = hosted_tables(role, stored.streams_tables());
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
    return ops::StreamedBase{
        m.blocks.get(), nullptr,     blocks.slots,         gradients.slots,
        inputs.slots,   copied.slot, copied.gradient_slot, tables.gives_rows()};
  }
  void add_inputs(Model& m, const ModelRole& role, ops::StreamedBase& to) {
    const std::vector<at::Tensor> none(static_cast<std::size_t>(role.shape.blocks()));
    CopiedKind inputs;
    for (std::size_t b = 0; b < none.size(); ++b) inputs.units.push_back(group_inputs(role));
    inputs.slots = slots_for(inputs.units);
    m.blocks =
        std::make_unique<CopiedBlocks>(CopiedKind{none, std::vector<at::Tensor>(kBlockSlots)},
                                       CopiedKind(), inputs, CopiedTables());
    to.input_slots = m.blocks.get();
    to.inputs = inputs.slots;
  }
  std::optional<ops::StreamedBase> sliced_base(Model& m, const ModelRole& role) {
    const std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
    std::vector<at::Tensor> blocks;
    for (std::size_t u = 0; u < units.size(); ++u)
      if (units[u].block >= 0) blocks.push_back(m.weights[u]);
    const spec::UnitSlices slices = weight_slices(role, dtype());
    ops::StreamedBase out;
    out.memory = slots_for(blocks);
    m.sliced = std::make_unique<train::SlicedWeights>(
        ranks_, role, slices, at::zeros({slices.slice_elements()}, options_),
        train::SlicedWeights::Memory{
            out.memory,
            at::zeros({step::sliced_tables(role.shape, role.head, units).elements}, options_)},
        /*overlaps=*/true);
    out.slots = m.sliced.get();
    return out;
  }
  // As large as the plan's.
  [[nodiscard]] at::Tensor group_inputs(const ModelRole& role) const {
    const spec::Recipe recipe = spec::describe(job_, modes_);
    for (const spec::Phase& phase : recipe.phases) {
      if (phase.model != role.id || phase.storage.inputs == spec::Home::kDevice) continue;
      const std::int64_t rows = std::min(phase.storage.together, micro_batches(job_, phase)) *
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
  spec::StepModes modes_;
  at::TensorOptions options_;
  parallel::Communicator& ranks_;
  parallel::Communicator* replicas_;
  testing::MuteRanks tensor_;   // that divide every model
  testing::MuteRanks context_;  // every sequence
  std::map<std::pair<spec::ModelId, bool>, Model> models_;
  std::optional<testing::MuteRanks> dividing_;  // a model only where it generates
  std::unique_ptr<ops::Transformer> divided_;
};

}  // namespace neap::plan
