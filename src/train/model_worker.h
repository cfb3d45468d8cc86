// One model of the job (actor, critic, reference, reward) in the regions of the plan: weights, and
// gradients and optimizer states if it is trained.
//
// Tags      ROLE.weights, ROLE.grads, ROLE.optimizer. Also ROLE.unit_grads with sharded gradients,
//           ROLE.adapter with LoRA, ROLE.prefetch with offloaded or sharded weights, and
//           ROLE.rollout_weights if rollouts need separate weights. Residency the caller opens a
//           phase, or holds the tags, before it touches contents.
// Ranks     every rank loads, saves and restores together. All read the same folder. Each writes
//           its own tensors, and the first writes the other files. With tensor parallelism each
//           rank has its shard, and the folder has the whole model.
// Threads   one at a time.
// Failure   Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/runtime.h"
#include "ops/stage_links.h"
#include "ops/transformer.h"
#include "parallel/groups.h"
#include "spec/model/adapter_config.h"
#include "spec/model/layout.h"
#include "spec/model/pipeline.h"
#include "spec/recipe/job_model.h"
#include "step/units/gradient_slots.h"
#include "step/units/update_parts.h"
#include "train/collective_files.h"
#include "train/generation_weights.h"
#include "train/hosted_gradients.h"
#include "train/optimizer.h"
#include "train/saved_files.h"
#include "train/sliced_weights.h"
#include "weights/checkpoint.h"
#include "weights/model_reader.h"
#include "weights/tensor_io.h"
#include "weights/unit_cuts.h"

namespace neap::train {

/// A model of the job and its run settings. Its folder may have no weights.
struct WorkerSpec : spec::JobModel {
  std::filesystem::path adapter{};  ///< folder of the adapter to continue; empty: a new adapter
  bool save_base = false;           ///< with LoRA: also save the base
  /// Layer-wise offload: blocks, and their gradients if they are trained, are in host memory
  /// (bridge/streamed_blocks.h).
  bool streamed = false;
  bool sliced = false;  ///< ZeRO-3: each rank has a shard of the weights, except for adapters
  bool slice_on_host = false;      ///< the weight shard is offloaded
  bool gradients_on_host = false;  ///< the gradient shard is also offloaded
  step::RestsOnDisk on_disk{};     ///< which offloaded data are on disk instead of in host memory
  std::int64_t zero_stage =
      0;  ///< ZeRO stage of optimizer states and gradients (spec/job/placement.h)
  /// For random initialisation, if the folder has no weights, and for stochastic rounding.
  std::uint64_t seed = 0;
  /// Whether a scalar head that is missing in the folder starts at zero. Otherwise it is an error.
  bool init_head = false;
};

class ModelWorker {
 public:
  /// Creates views of the plan's regions without touching contents. `runtime` and `groups` must
  /// outlive it.
  ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec);

  [[nodiscard]] ops::Transformer& model() { return *model_; }
  /// The weights without the adapter; model() for a model without an adapter.
  [[nodiscard]] ops::Transformer& base() { return base_ ? *base_ : *model_; }
  /// The model for rollouts: model(), or a model over the rollout weights.
  [[nodiscard]] ops::Transformer& generator() { return generator_ ? *generator_ : *model_; }
  /// Updates generator() with other ranks' weights. Every rank calls it, in a phase that generates.
  void gather_generator();
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] const WorkerSpec& spec() const { return spec_; }
  [[nodiscard]] const spec::Architecture& shape() const { return spec_.shape; }

  /// For an update: calls visit(unit) for every trained unit, in order, while its tensors are on
  /// the device. With offloaded states it visits parts of units (step/units/update_parts.h).
  void for_each_part(const std::function<void(const OptimizerUnit&)>& visit);
  /// All-gathers the weights that other ranks have updated. Every rank calls it after
  /// for_each_part().
  void gather_weights();

  /// Loads weights from the folder. If it has none and all weights are trained, they are random,
  /// from the seed. Optimizer states start at zero. Logs missing and unused tensors. A missing
  /// scalar head is an error unless `init_head` is set.
  void load();
  /// Writes weights in Hugging Face's format (config.json, model.safetensors), and
  /// optimizer.safetensors for a trained model. With LoRA it writes only the adapter, if a folder
  /// holds the base. The tensors are complete when the caller has completed `files`. The caller
  /// that makes the folder a checkpoint syncs it. Only the companions and the shard size of
  /// `options` are used. Fails before writing if ranks have different weights.
  void save(const std::filesystem::path& folder, const weights::SaveOptions& options,
            SavedFiles& files);
  /// Reads back what save() wrote, bitwise. An adapter's base is read from where load() reads it.
  void restore(const std::filesystem::path& folder);

 private:
  [[nodiscard]] spec::TagId tag(spec::TagKind kind) const { return {kind, spec_.id}; }
  [[nodiscard]] bool has_lora() const { return spec_.lora.rank > 0; }
  [[nodiscard]] const std::vector<spec::FlatUnit>& trained_layout() const {
    return has_lora() ? adapter_layout_ : layout_;
  }
  void place_states();
  /// Creates the optimizer over the regions of gradients and states, or over host memory. Sets
  /// `gradients`.
  void make_optimizer(const std::vector<at::Tensor>& weights, std::vector<at::Tensor>& gradients);
  /// The storage of an offloaded unit of the base; null if it is not offloaded.
  [[nodiscard]] const bridge::StreamedBlocks::Storage* hosted(const spec::FlatUnit& unit) const;
  /// As hosted(), for a trained unit of the base; null for an adapter's.
  [[nodiscard]] const bridge::StreamedBlocks::Storage* hosted_trained(
      const spec::FlatUnit& unit) const {
    return has_lora() ? nullptr : hosted(unit);
  }
  /// The tensor that backward adds a unit's gradients to.
  [[nodiscard]] at::Tensor unit_gradients(const spec::FlatUnit& unit, at::ScalarType dtype);
  /// With sharded states and offloaded gradients: keeps the gradients that this rank updates.
  void keep_own_gradients();
  /// The gradients that are offloaded.
  [[nodiscard]] step::GradientSlots<ops::AtenOps>::Hosted* hosted_gradients();
  /// With sharded gradients: creates their receiver from `gradients`, one per trained unit.
  void take_gradients(const std::vector<at::Tensor>& gradients);
  /// Creates this rank's pieces, from units without states.
  void make_pieces(const std::vector<OptimizerUnit>& units);
  /// A part of the optimizer's tag, as (bytes,).
  [[nodiscard]] at::Tensor state_part(std::size_t index, const spec::StatePart& part);
  /// Prefetch buffers of offloaded states, as (bytes,).
  [[nodiscard]] std::vector<at::Tensor> update_slots();
  /// All-gathers offloaded units through these buffers.
  void gather_hosted();
  /// Where a tensor of a part is stored.
  [[nodiscard]] bridge::Resting resting(const step::UpdatePart& part, step::StreamedKind kind);
  [[nodiscard]] std::vector<at::Tensor> regions(spec::TagKind kind,
                                                const std::vector<spec::FlatUnit>& units,
                                                at::ScalarType dtype);
  [[nodiscard]] at::Tensor region(spec::TagKind kind, const spec::FlatUnit& unit,
                                  at::ScalarType dtype);
  /// The tensors that hold the base's weights: regions, or host memory of offloaded blocks.
  /// Undefined: the model's files hold them.
  [[nodiscard]] std::vector<at::Tensor> base_weights();
  /// A destination for each of base_weights(): its storage. For a unit that only passes through
  /// prefetch buffers it is the first buffer.
  [[nodiscard]] std::vector<at::Tensor> places_of_base();
  /// Blocks that the plan reads from the model's files are read from this folder, which has them in
  /// the same format.
  void read_blocks_from(const std::filesystem::path& folder);
  [[nodiscard]] bool reads_blocks() const {
    return spec_.streamed && runtime_.streamed_blocks(tag(spec::TagKind::kBuffers)).in_files();
  }
  /// Creates the model for rollouts.
  void make_generator(const std::optional<ops::Lora>& lora);
  /// The source of whole units of the base, and of adapters, for rollouts.
  [[nodiscard]] UnitSource& source_of_base();
  [[nodiscard]] UnitSource& source_of_adapters();
  /// The rollout weights' part for a whole unit of this rank.
  [[nodiscard]] bridge::SlotPart part_to_generate(const spec::FlatUnit& unit) const;
  /// Copies a unit of the base to its rollout weights `to`.
  void take_to_generate(std::size_t unit, const at::Tensor& to);
  /// The base's tensors for rollouts. Tensors that must be gathered are added to `units`; for
  /// offloaded weights these are the blocks.
  [[nodiscard]] std::vector<at::Tensor> own_to_generate(
      std::vector<GenerationWeights::Units>& units);
  /// The same for another tensor-parallel size, stages or ZeRO shards. It includes adapters if
  /// rollouts do not read the trained ones.
  [[nodiscard]] std::vector<at::Tensor> part_of_others(std::vector<GenerationWeights::Units>& units,
                                                       std::optional<ops::Lora>& adapted);
  [[nodiscard]] UnitSource& own_units(const std::vector<at::Tensor>& units);
  /// `take` copies a unit of this stage to a tensor.
  using TakeOwnUnit = std::function<void(std::size_t unit, const at::Tensor& to)>;
  [[nodiscard]] UnitSource& units_from_stages(std::vector<spec::FlatUnit> layout,
                                              const std::vector<std::size_t>& numbers,
                                              const TakeOwnUnit& take);
  /// The exchange from training shards to rollout shards; null if both are the same.
  using LayoutOf = std::function<std::vector<spec::FlatUnit>(const spec::Architecture&)>;
  [[nodiscard]] std::unique_ptr<PartExchange> parts_to_generate(const LayoutOf& layout);
  /// The weights that passes read: base_weights(), and prefetch buffers for offloaded or sharded
  /// blocks.
  [[nodiscard]] std::optional<ops::StreamedBase> streamed_base();
  /// Divides the base among ranks (ZeRO-3), and sets the memory for gathered units.
  void slice_base();
  /// The ranks with the same ZeRO shards; null: none.
  [[nodiscard]] parallel::Communicator* replicas() const {
    return groups_.replicas().alone() ? nullptr : &groups_.replicas();
  }
  /// Whether this replica writes the shared elements of a tensor with this number.
  [[nodiscard]] bool writes_slice(std::size_t number) const {
    const auto of = static_cast<std::size_t>(groups_.replicas().size());
    return number % of == static_cast<std::size_t>(groups_.replicas().rank());
  }
  /// Whether updates change weights that are ZeRO shards.
  [[nodiscard]] bool trains_slices() const { return spec_.sliced && spec_.trained && !has_lora(); }
  /// Makes everything that save and load touch resident. With LoRA and without `weights`, the base
  /// is not included.
  [[nodiscard]] std::unique_ptr<bridge::Runtime::Scope> hold(bool weights = true);
  /// With LoRA: the folder that holds the base. Empty if the base has several sources.
  [[nodiscard]] std::filesystem::path base_folder() const;
  [[nodiscard]] bool saves_weights() const {
    return !has_lora() || spec_.save_base || base_folder().empty();
  }
  /// This rank's tensor-parallel shard.
  [[nodiscard]] const spec::TensorShard& shard() const { return spec_.shape.tensor; }
  [[nodiscard]] const weights::UnitCuts& trained_cuts() const {
    return has_lora() ? *adapter_cuts_ : *cuts_;
  }
  /// This rank's part of a state; undefined if it has none.
  [[nodiscard]] at::Tensor own_part(const spec::WholeState& state) const;

  /// Fills the defined tensors of units [first, first + flat.size()).
  using UnitFill = std::function<void(std::size_t first, const std::vector<at::Tensor>& flat)>;
  /// Converts a fill of whole units to one of this rank's shards. It uses host memory, one unit at
  /// a time.
  [[nodiscard]] UnitFill of_part(UnitFill whole, const std::optional<weights::UnitCuts>& cuts,
                                 const std::vector<std::size_t>& numbers) const;
  /// Converts a fill of whole units of the base to one of base_weights().
  [[nodiscard]] UnitFill of_base(UnitFill whole) const;
  /// Fills all weights of the base that have memory of their own. Padding becomes zero.
  void fill_base(const UnitFill& fill);
  [[nodiscard]] UnitFill adapter_source(const weights::AdapterReader& reader) const;
  // For a model with pipeline stages (model_stages.cpp):
  [[nodiscard]] std::vector<spec::FlatUnit> whole_trained_layout() const {
    return has_lora() ? spec::lora_layout(spec_.whole, spec_.head, spec_.lora)
                      : spec::flat_layout(spec_.whole, spec_.head);
  }
  [[nodiscard]] bool has_stages() const { return spec_.shape.pipeline.stages > 1; }
  [[nodiscard]] parallel::Communicator& stages() const { return groups_.along(spec::Axis::kPipe); }
  [[nodiscard]] std::int64_t stage_of(const spec::FlatUnit& unit) const {
    return spec::stage_of_unit(spec::undivided(spec_.shape), spec_.head, stages().size(), unit);
  }
  /// False if another stage also has the unit and writes it.
  [[nodiscard]] bool writes_unit(const spec::FlatUnit& unit) const {
    return !has_stages() || stage_of(unit) == stages().rank();
  }
  /// Fails on every rank if the two copies of a tied embedding differ.
  void expect_equal_tables() const;
  /// The folder's weights, or random ones.
  [[nodiscard]] UnitFill weight_source();
  /// Sets weights and states of the trained units before the first step.
  void start_units(const UnitFill& fill);
  void start_sliced_masters(const UnitFill& fill);
  /// Allows a missing scalar head, which starts at zero, only if the job says so. Otherwise fails.
  void check_missing_head() const;
  void write(const std::filesystem::path& folder, weights::SaveOptions options, SavedFiles& saved);
  void write_weights(const std::filesystem::path& folder, const weights::SaveOptions& options,
                     SavedFiles& saved);
  void note_base();
  void write_adapters(const std::filesystem::path& folder, weights::Sync sync, SavedFiles& saved);
  /// Runs `work` on the first rank. A failure is thrown on every rank.
  void by_first(const std::function<void()>& work) const;
  /// Weights or adapters, with information about this rank's units.
  struct OwnUnits {
    const std::vector<spec::FlatUnit>& units;
    const std::vector<std::size_t>& numbers;
    const std::optional<weights::UnitCuts>& cuts;
    const std::vector<at::Tensor>& values;
    const SlicedWeights* slices;  ///< null: values are whole units
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
  };
  /// Every rank writes its elements. `whole` is the layout of the whole model.
  void write_units(const weights::TensorFiles& files, const std::vector<spec::FlatUnit>& whole,
                   weights::Sync sync, const OwnUnits& own, SavedFiles& saved,
                   std::function<void()> finished = {});
  void visit_own_units(const std::vector<spec::FlatUnit>& whole, const OwnUnits& own,
                       const PartVisit& visit) const;
  /// Every rank writes its own states.
  void write_states(const std::filesystem::path& folder, SavedFiles& saved);
  /// Visits the states in the file that this rank writes.
  void visit_own_states(const std::vector<spec::WholeState>& all, const PartVisit& visit) const;
  void add_padding(std::size_t number, const spec::WholeState& state,
                   std::vector<FilePart>& parts) const;
  /// The states of the whole model, for ranks that have shards of it.
  [[nodiscard]] std::vector<spec::WholeState> whole_states() const;
  void restore_states(const std::filesystem::path& folder);
  void restore_parts(const weights::SafetensorsFile& file);
  /// Warns of tensors in the folder that the model does not use.
  void report_unused(const weights::ModelReader& reader) const;
  /// Loads the adapters to continue, or initialises them at random. A scalar head that is trained
  /// with them starts as the base's.
  void start_adapters(const UnitFill& base);
  void start_scalar_head(const at::Tensor& adapter, const UnitFill& base);

  /// The sum of a tensor's bit patterns. It changes if one bit differs.
  [[nodiscard]] static std::int64_t sum_of_bits(const at::Tensor& flat);
  /// Fails on every rank if trained weights differ between ranks.
  void expect_agreement(bool weights) const;

  bridge::Runtime& runtime_;
  const parallel::Groups& groups_;
  WorkerSpec spec_;
  std::vector<spec::FlatUnit> layout_, adapter_layout_;
  // Numbers of this rank's units in the whole model.
  std::vector<std::size_t> numbers_, adapter_numbers_;
  std::optional<ops::StageLinks> links_;                  // to the other stages
  std::optional<weights::UnitCuts> cuts_, adapter_cuts_;  // set with tensor parallelism
  std::unique_ptr<weights::AdapterReader> start_;  ///< the adapter's file, while weights are loaded
  std::string base_fingerprint_;  ///< of the adapters' base folder, when it was read
  // Views of the regions, or of host memory if offloaded, one per unit. ZeRO-3 weights have this
  // rank's elements. `adapters_` is empty without adapters. `states_` (bytes) has one tensor per
  // part of the tag.
  std::vector<at::Tensor> weights_, adapters_, states_;
  std::unique_ptr<SlicedWeights> sliced_;
  std::vector<std::unique_ptr<UnitSource>> sources_;
  std::unique_ptr<GenerationWeights> generating_;  // rollout weights that must be gathered
  std::unique_ptr<ops::Transformer> model_, base_, generator_;
  std::unique_ptr<Optimizer> optimizer_;
  // For a trained model:
  std::optional<spec::StatePlacement> placement_;
  std::vector<OptimizerUnit> pieces_;       // this rank's pieces, with states
  std::optional<step::UpdateParts> parts_;  // of offloaded states
  std::optional<ops::AtenOps> slice_ops_;
  std::unique_ptr<HostedGradients> hosted_gradients_;           // of the pieces
  std::optional<step::GradientSlots<ops::AtenOps>> gradients_;  // only if gradients are sharded
};

}  // namespace neap::train
