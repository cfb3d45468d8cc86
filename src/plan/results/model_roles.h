// The models of a job as plans see them: what is trained, by which ranks, and what is offloaded.
//
// Threads   values and stateless functions.
// Failure   kInvalidArgument for files that cannot be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/results/memory_plan.h"
#include "spec/job/optimizer.h"
#include "spec/job/placement.h"
#include "spec/model/layout.h"
#include "spec/model/part_transfers.h"
#include "spec/recipe/job_model.h"
#include "spec/recipe/recipe.h"
#include "step/operations/own_kernels.h"
#include "step/units/block_buffers.h"
#include "step/units/sliced_tables.h"
#include "step/units/update_parts.h"

namespace neap::plan {

/// A model of the job with the checkpointing of its blocks.
struct ModelRole : spec::JobModel {
  spec::CheckpointMode checkpoint_mode = spec::CheckpointMode::kNone;
  spec::Checkpointing checkpointing{};
  spec::DataParallel ranks{};  ///< ranks that have it
  /// The rank whose shards are counted. nullopt: the rank with the most, plus what others may need
  /// in addition.
  std::optional<std::int64_t> rank{};
  /// Frozen blocks on disk, and tables with them, are read from the model's own files, which have
  /// them in the compute type.
  bool blocks_in_files = false;
  [[nodiscard]] bool reads_files(spec::Home layers) const {
    return spec::is_staged(layers) && blocks_in_files;
  }
  std::int64_t context_rank = 0;  ///< context-parallel rank; the first one has the most rows
};
/// The architectures of a job's models, read once, as a rank has them.
struct JobModels {
  std::optional<ModelRole> actor, reference, critic, reward;
  [[nodiscard]] std::optional<ModelRole>& slot(spec::ModelId model);
  /// A model of the job's recipe.
  [[nodiscard]] const ModelRole& at(spec::ModelId model) const;
};
[[nodiscard]] Result<JobModels> read_models(const spec::Job& job, const spec::Recipe& recipe,
                                            spec::Dtype compute, std::int64_t rank = 0,
                                            const weights::OpenFolders& folders = {});

/// The type of forward and backward.
[[nodiscard]] spec::Dtype compute_dtype(const spec::Job& job, const Target& target);
/// Whether Neap's kernels run.
[[nodiscard]] step::OwnKernels own_kernels(const spec::Job& job, const Target& target);
/// The optimizer of a trained model. read_models() has checked its types.
[[nodiscard]] spec::OptimizerSpec optimizer_of(const ModelRole& role, spec::Dtype compute);

/// Elements that the training tensor-parallel group exchanges for rollouts with another
/// tensor-parallel size.
[[nodiscard]] spec::TransferSizes transfers_to_generate(const ModelRole& role);
/// The trained units: the adapters', or else the base's.
[[nodiscard]] std::vector<spec::FlatUnit> trained_units(const ModelRole& role);
/// The placement of their optimizer states.
[[nodiscard]] spec::StatePlacement placement_of(const ModelRole& role, spec::Dtype compute);
/// For each trained unit, whether its whole weights and gradients are offloaded.
[[nodiscard]] std::vector<bool> on_host(const ModelRole& role, const spec::ModelStorage& storage);
/// The ZeRO-3 sharding of a model's weights.
[[nodiscard]] spec::UnitSlices weight_slices(const ModelRole& role, spec::Dtype compute);
/// Bytes of a rank's shard of each unit: of the role's rank, or of the rank with the most.
[[nodiscard]] std::vector<Bytes> slice_bytes(const ModelRole& role, spec::Dtype compute);
/// The parts in which offloaded states are updated, on the rank with the most.
[[nodiscard]] step::UpdateParts update_parts(const ModelRole& role, spec::Dtype compute,
                                             const spec::ModelStorage& storage);

/// Parts of which none of any rank is larger; buffers have their sizes.
[[nodiscard]] step::UpdateParts largest_parts(const ModelRole& role, spec::Dtype compute,
                                              const spec::ModelStorage& storage);

using step::kBlockSlots;
/// One part per unit.
[[nodiscard]] std::vector<PartPlan> unit_parts(const std::vector<spec::FlatUnit>& units,
                                               spec::Dtype dtype);
[[nodiscard]] Bytes largest_of(const std::vector<PartPlan>& parts);
/// The rollout weights of a rank: all of the base, and adapters if rollouts do not read the trained
/// ones.
[[nodiscard]] std::vector<PartPlan> rollout_parts(const ModelRole& role, spec::Dtype dtype);
/// These, and with another tensor-parallel size space for units from stages or the host (`streamed`
/// weights), and for elements from other ranks.
[[nodiscard]] std::vector<PartPlan> generating_parts(const ModelRole& role, spec::Dtype dtype,
                                                     bool streamed);
/// The blocks of a model with offloaded weights, in order; or the same numbers of elements in
/// another type.
[[nodiscard]] std::vector<PartPlan> hosted_blocks(const ModelRole& role, spec::Dtype compute);
/// The data that are loaded for each block. Files have only the parameters, without padding between
/// them.
[[nodiscard]] std::vector<PartPlan> fetched_blocks(const ModelRole& role, spec::Dtype compute,
                                                   spec::Home layers);
/// Size of a staging buffer for any block, wherever its parameters start within a page of the file.
[[nodiscard]] Bytes file_window(const ModelRole& role, spec::Dtype compute);
/// Offloaded units that are not blocks, and those of them that are loaded into prefetch buffers.
/// Empty for a model that generates, because decoding reads both for each token.
struct HostedTables {
  std::vector<spec::FlatUnit> units;
  step::TableUnits turns;
  [[nodiscard]] bool has(const std::string& unit) const;
  /// Whether the first unit is the embedding, of which only a batch's rows are copied.
  [[nodiscard]] bool gives_rows() const;
};
/// `turns`: all units that can be loaded into buffers; else only a frozen embedding whose rows are
/// copied.
[[nodiscard]] HostedTables hosted_tables(const ModelRole& role, bool turns);

}  // namespace neap::plan
