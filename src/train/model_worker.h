// One model of the job (actor, critic, reference, reward) in the regions that the plan gives it:
// weights, and for a trained one gradients and optimizer states.
//
// Tags      ROLE.weights, ROLE.grads, ROLE.optimizer (and ROLE.unit_grads where gradients are sliced, and ROLE.adapter with LoRA, ROLE.prefetch where its
//           weights are streamed or sliced, ROLE.rollout_weights where it then generates, or does so with another part).
// Residency the caller opens a phase, or holds the tags, before it touches contents.
// Ranks     every rank loads, saves and restores together: all read the same folder, and every one writes what it has
//           of tensors, the first the other files. Where ranks divide the model, each has its part, and the folder the
//           whole model.
// Threads   one at a time.   Failure   Error.
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
#include "spec/adapter_config.h"
#include "spec/job_model.h"
#include "spec/layout.h"
#include "spec/pipeline.h"
#include "step/gradient_slots.h"
#include "step/update_parts.h"
#include "train/collective_files.h"
#include "train/generation_weights.h"
#include "train/hosted_gradients.h"
#include "train/optimizer.h"
#include "train/sliced_weights.h"
#include "weights/checkpoint.h"
#include "weights/model_reader.h"
#include "weights/tensor_io.h"
#include "weights/unit_cuts.h"

namespace neap::train {

/// A model of the job, whose folder has weights only if there are any, and how a run works with it.
struct WorkerSpec : spec::JobModel {
  std::filesystem::path adapter{};  ///< folder of the adapter to continue; empty: a new one
  bool save_base = false;           ///< with LoRA the base is saved, too
  /// Blocks of the weights, and where they are trained their gradients, rest on the host
  /// (bridge/streamed_blocks.h).
  bool streamed = false;
  bool sliced = false;             ///< each rank has a slice of its weights, but for adapters
  bool slice_on_host = false;      ///< and it rests on the host
  bool gradients_on_host = false;  ///< that of the gradients, too
  step::RestsOnDisk on_disk{};     ///< of what rests on the host without it
  std::int64_t zero_stage = 0;     ///< of its optimizer states and gradients (spec/placement.h)
  /// Of the initialization where the folder has no weights, and of stochastic rounding.
  std::uint64_t seed = 0;
  /// Whether a scalar head that the folder lacks may start at zero. False: it is an error.
  bool init_head = false;
};

class ModelWorker {
 public:
  /// Builds views over the plan's regions; touches no contents. `runtime` and `groups` outlive it.
  ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec);

  [[nodiscard]] ops::Transformer& model() { return *model_; }
  /// The same weights without the adapter; model() itself where there is none.
  [[nodiscard]] ops::Transformer& base() { return base_ ? *base_ : *model_; }
  /// The one that generates: model(), or where its weights rest elsewhere one over all that it generates with.
  [[nodiscard]] ops::Transformer& generator() { return generator_ ? *generator_ : *model_; }
  /// What generator() reads of other ranks' weights comes to its place, in a phase that generates. Every rank calls it.
  void gather_generator();
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] const WorkerSpec& spec() const { return spec_; }
  [[nodiscard]] const spec::Architecture& shape() const { return spec_.shape; }

  /// Of an update: visit(unit) for every trained unit, in order; where states are streamed for every part
  /// of them (step/update_parts.h), while its tensors are on the device.
  void for_each_part(const std::function<void(const OptimizerUnit&)>& visit);
  /// Behind it, weights that other ranks have stepped. Every rank calls it.
  void gather_weights();

  /// Weights from the folder, or random ones from the seed where it has none and the role trains all
  /// of them; optimizer states zero. Says what the folder lacks and what of it is not used. A scalar
  /// head that is not there is an error unless `init_head`.
  void load();
  /// Writes weights in Hugging Face's form (config.json, model.safetensors), of LoRA the adapter alone
  /// where a folder holds its base, and, for a trained role, optimizer.safetensors; who makes the folder a checkpoint syncs it. Of `options` the
  /// companions and the size of shards count. Fails before it writes when ranks do not hold the same
  /// weights.
  void save(const std::filesystem::path& folder, const weights::SaveOptions& options);
  /// Reads back what save wrote, bit by bit; an adapter's base from where load() reads it.
  void restore(const std::filesystem::path& folder);

 private:
  [[nodiscard]] spec::TagId tag(spec::TagKind kind) const { return {kind, spec_.id}; }
  [[nodiscard]] bool has_lora() const { return spec_.lora.rank > 0; }
  [[nodiscard]] const std::vector<spec::FlatUnit>& trained_layout() const {
    return has_lora() ? adapter_layout_ : layout_;
  }
  void place_states();
  /// The optimizer over the regions of gradients and states, or host memory; makes `gradients`.
  void make_optimizer(const std::vector<at::Tensor>& weights, std::vector<at::Tensor>& gradients);
  /// Where a unit of the base rests on the host; null: it does not.
  [[nodiscard]] const bridge::StreamedBlocks::Storage* hosted(const spec::FlatUnit& unit) const;
  /// Of a trained unit, not an adapter's.
  [[nodiscard]] const bridge::StreamedBlocks::Storage* hosted_trained(
      const spec::FlatUnit& unit) const {
    return has_lora() ? nullptr : hosted(unit);
  }
  /// Where backward adds a unit's gradients.
  [[nodiscard]] at::Tensor unit_gradients(const spec::FlatUnit& unit, at::ScalarType dtype);
  /// Of sliced states: of gradients on the host what this rank steps.
  void keep_own_gradients();
  /// Of those that rest on the host.
  [[nodiscard]] step::GradientSlots<ops::AtenOps>::Hosted* hosted_gradients();
  /// Of sliced gradients: what takes them from `gradients`, one a trained unit.
  void take_gradients(const std::vector<at::Tensor>& gradients);
  /// The pieces of this rank: of units that have no states yet.
  void make_pieces(const std::vector<OptimizerUnit>& units);
  /// A part of the optimizer's tag: (bytes,).
  [[nodiscard]] at::Tensor state_part(std::size_t index, const spec::StatePart& part);
  /// Slots of streamed states: (bytes,).
  [[nodiscard]] std::vector<at::Tensor> update_slots();
  /// Of units on the host, through these slots.
  void gather_hosted();
  /// Where a tensor of a part rests.
  [[nodiscard]] bridge::Resting resting(const step::UpdatePart& part, step::StreamedKind kind);
  [[nodiscard]] std::vector<at::Tensor> regions(spec::TagKind kind,
                                                const std::vector<spec::FlatUnit>& units,
                                                at::ScalarType dtype);
  [[nodiscard]] at::Tensor region(spec::TagKind kind, const spec::FlatUnit& unit,
                                  at::ScalarType dtype);
  /// Where the base's weights rest: regions, and of streamed blocks host memory. Undefined: in the model's files.
  [[nodiscard]] std::vector<at::Tensor> base_weights();
  /// A place for each of base_weights(): where they rest, or of what comes to slots only, the first one.
  [[nodiscard]] std::vector<at::Tensor> places_of_base();
  /// Blocks that the plan reads from the model's files come from those in a folder, which have them in the same form.
  void read_blocks_from(const std::filesystem::path& folder);
  [[nodiscard]] bool reads_blocks() const {
    return spec_.streamed && runtime_.streamed_blocks(tag(spec::TagKind::kBuffers)).in_files();
  }
  /// The generator of a model whose weights rest elsewhere.
  void make_generator(const std::optional<ops::Lora>& lora);
  /// Where units of the base, and of adapters, come from for it.
  [[nodiscard]] UnitSource& source_of_base();
  [[nodiscard]] UnitSource& source_of_adapters();
  /// Where a unit of this rank comes to for it, whole.
  [[nodiscard]] bridge::SlotPart part_to_generate(const spec::FlatUnit& unit) const;
  /// A unit of the base comes there, which is `to`.
  void take_to_generate(std::size_t unit, const at::Tensor& to);
  /// Tensors of the base for it, of which those in `units` come to them: of streamed weights the blocks.
  [[nodiscard]] std::vector<at::Tensor> own_to_generate(
      std::vector<GenerationWeights::Units>& units);
  /// The same of another part, of stages or of slices, and of adapters where they are not those that train.
  [[nodiscard]] std::vector<at::Tensor> part_of_others(std::vector<GenerationWeights::Units>& units,
                                                       std::optional<ops::Lora>& adapted);
  [[nodiscard]] UnitSource& own_units(const std::vector<at::Tensor>& units);
  /// `take`: a unit of this stage comes to a tensor.
  using TakeOwnUnit = std::function<void(std::size_t unit, const at::Tensor& to)>;
  [[nodiscard]] UnitSource& units_from_stages(std::vector<spec::FlatUnit> layout,
                                              const std::vector<std::size_t>& numbers,
                                              const TakeOwnUnit& take);
  /// What makes the parts that generate of those of training; null: they are divided alike.
  using LayoutOf = std::function<std::vector<spec::FlatUnit>(const spec::Architecture&)>;
  [[nodiscard]] std::unique_ptr<PartExchange> parts_to_generate(const LayoutOf& layout);
  /// What passes read: the same as base_weights(), and of streamed and sliced blocks slots.
  [[nodiscard]] std::optional<ops::StreamedBase> streamed_base();
  /// How ranks divide the base, and memory for units of it.
  void slice_base();
  /// Ranks with the same slices; null: none.
  [[nodiscard]] parallel::Communicator* replicas() const {
    return groups_.replicas().alone() ? nullptr : &groups_.replicas();
  }
  /// Whether this one of several replicas writes what all have of a tensor with the number.
  [[nodiscard]] bool writes_slice(std::size_t number) const {
    const auto of = static_cast<std::size_t>(groups_.replicas().size());
    return number % of == static_cast<std::size_t>(groups_.replicas().rank());
  }
  /// Updates change sliced weights.
  [[nodiscard]] bool trains_slices() const { return spec_.sliced && spec_.trained && !has_lora(); }
  /// Brings everything that save and load touch to the device; of LoRA without the base, if not
  /// `weights`.
  [[nodiscard]] std::unique_ptr<bridge::Runtime::Scope> hold(bool weights = true);
  /// Of LoRA: the folder that holds the base; empty where it is made of several.
  [[nodiscard]] std::filesystem::path base_folder() const;
  [[nodiscard]] bool saves_weights() const {
    return !has_lora() || spec_.save_base || base_folder().empty();
  }
  /// Which part of the model this rank has.
  [[nodiscard]] const spec::TensorShard& shard() const { return spec_.shape.tensor; }
  [[nodiscard]] const weights::UnitCuts& trained_cuts() const {
    return has_lora() ? *adapter_cuts_ : *cuts_;
  }
  /// This rank's part of a state; undefined: it has none.
  [[nodiscard]] at::Tensor own_part(const spec::WholeState& state) const;

  /// Fills the weights of units [first, first + flat.size()) that are defined.
  using UnitFill = std::function<void(std::size_t first, const std::vector<at::Tensor>& flat)>;
  /// From one of whole units: of this rank's parts. A unit at a time through host memory.
  [[nodiscard]] UnitFill of_part(UnitFill whole, const std::optional<weights::UnitCuts>& cuts,
                                 const std::vector<std::size_t>& numbers) const;
  /// From one of whole units of the base: of what base_weights() gives.
  [[nodiscard]] UnitFill of_base(UnitFill whole) const;
  /// All of the base that has memory of its own, padding zero.
  void fill_base(const UnitFill& fill);
  [[nodiscard]] UnitFill adapter_source(const weights::AdapterReader& reader) const;
  // Of a model that stages of a pipeline divide (model_stages.cpp):
  [[nodiscard]] std::vector<spec::FlatUnit> whole_trained_layout() const {
    return has_lora() ? spec::lora_layout(spec_.whole, spec_.head, spec_.lora)
                      : spec::flat_layout(spec_.whole, spec_.head);
  }
  [[nodiscard]] bool has_stages() const { return spec_.shape.pipeline.stages > 1; }
  [[nodiscard]] parallel::Communicator& stages() const { return groups_.along(spec::Axis::kPipe); }
  [[nodiscard]] std::int64_t stage_of(const spec::FlatUnit& unit) const {
    return spec::stage_of_unit(spec::undivided(spec_.shape), spec_.head, stages().size(), unit);
  }
  /// False: another stage has it, too, and writes it.
  [[nodiscard]] bool writes_unit(const spec::FlatUnit& unit) const {
    return !has_stages() || stage_of(unit) == stages().rank();
  }
  /// Fails on every rank where the two copies of a tied table differ.
  void expect_equal_tables() const;
  /// The folder's weights, or random ones.
  [[nodiscard]] UnitFill weight_source();
  /// Weights and states of the trained units before the first step.
  void start_units(const UnitFill& fill);
  void start_sliced_masters(const UnitFill& fill);
  /// A scalar head that the folder lacks starts at zero where the job says so; else an error.
  void check_missing_head() const;
  void write(const std::filesystem::path& folder, weights::SaveOptions options);
  void write_weights(const std::filesystem::path& folder, const weights::SaveOptions& options);
  void note_base();
  void write_adapters(const std::filesystem::path& folder, weights::Sync sync);
  /// Work of the first rank, which fails on all.
  void by_first(const std::function<void()>& work) const;
  /// Weights or adapters, with what is known of this rank's.
  struct OwnUnits {
    const std::vector<spec::FlatUnit>& units;
    const std::vector<std::size_t>& numbers;
    const std::optional<weights::UnitCuts>& cuts;
    const std::vector<at::Tensor>& values;
    const SlicedWeights* slices;  ///< null: values are of whole units
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
  };
  /// Every rank its own, of units of a whole layout.
  void write_units(const weights::TensorFiles& files, const std::vector<spec::FlatUnit>& whole,
                   weights::Sync sync, const OwnUnits& own);
  void visit_own_units(const std::vector<spec::FlatUnit>& whole, const OwnUnits& own,
                       const PartVisit& visit) const;
  /// Every rank its own.
  void write_states(const std::filesystem::path& folder);
  /// Of the file's states those that this rank writes.
  void visit_own_states(const std::vector<spec::WholeState>& all, const PartVisit& visit) const;
  void add_padding(std::size_t number, const spec::WholeState& state,
                   std::vector<FilePart>& parts) const;
  /// The states of a whole model whose parts ranks have.
  [[nodiscard]] std::vector<spec::WholeState> whole_states() const;
  void restore_states(const std::filesystem::path& folder);
  void restore_parts(const weights::SafetensorsFile& file);
  /// Warns of tensors in the folder that the model has no place for.
  void report_unused(const weights::ModelReader& reader) const;
  /// Those of the folder to continue, or random ones; then the scalar head that trains with them
  /// starts as the base's.
  void start_adapters(const UnitFill& base);
  void start_scalar_head(const at::Tensor& adapter, const UnitFill& base);

  /// The sum of a tensor's bit patterns, which one differing bit changes.
  [[nodiscard]] static std::int64_t sum_of_bits(const at::Tensor& flat);
  /// Fails on every rank when trained weights differ between them.
  void expect_agreement(bool weights) const;

  bridge::Runtime& runtime_;
  const parallel::Groups& groups_;
  WorkerSpec spec_;
  std::vector<spec::FlatUnit> layout_, adapter_layout_;
  std::vector<std::size_t> numbers_, adapter_numbers_;    // of their units among the whole model's
  std::optional<ops::StageLinks> links_;                  // to the other stages
  std::optional<weights::UnitCuts> cuts_, adapter_cuts_;  // where ranks divide the model
  std::unique_ptr<weights::AdapterReader> start_;  ///< while weights are loaded: the adapter's file
  std::string
      base_fingerprint_;  ///< of the folder that adapters are added to, as it was when it was read
  // Views of the regions, or of host memory of what is streamed, one a unit; of sliced weights this rank's
  // elements. Adapters are empty where there are none. States (bytes): one a part of the tag.
  std::vector<at::Tensor> weights_, adapters_, states_;
  std::unique_ptr<SlicedWeights> sliced_;
  std::vector<std::unique_ptr<UnitSource>> sources_;
  std::unique_ptr<GenerationWeights> generating_;  // of slices, stages or other parts that generate
  std::unique_ptr<ops::Transformer> model_, base_, generator_;
  std::unique_ptr<Optimizer> optimizer_;
  // Of a trained model:
  std::optional<spec::StatePlacement> placement_;
  std::vector<OptimizerUnit> pieces_;       // of this rank, with states
  std::optional<step::UpdateParts> parts_;  // of streamed states
  std::optional<ops::AtenOps> slice_ops_;
  std::unique_ptr<HostedGradients> hosted_gradients_;           // of pieces
  std::optional<step::GradientSlots<ops::AtenOps>> gradients_;  // that are sliced
};

}  // namespace neap::train
