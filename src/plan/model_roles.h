// The models of a job as plans see them: what of each is trained, by which ranks, and what of it rests elsewhere.
//
// Threads   values and functions without state.   Failure   kInvalidArgument for files that cannot be read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "spec/job_model.h"
#include "spec/layout.h"
#include "spec/optimizer.h"
#include "spec/part_transfers.h"
#include "spec/placement.h"
#include "spec/recipe.h"
#include "step/sliced_tables.h"
#include "step/update_parts.h"

namespace neap::plan {

/// A model of the job, and what its blocks keep while it trains.
struct ModelRole : spec::JobModel {
  spec::CheckpointMode checkpoint_mode = spec::CheckpointMode::kNone;
  spec::Checkpointing checkpointing{};
  spec::DataParallel ranks{};  ///< that have it
  /// The rank whose slices are counted; nullopt: the one that has most, and what others take besides.
  std::optional<std::int64_t> rank{};
  /// Frozen blocks, and tables with them, are read from the model's own files where blocks rest on disk: these have them as
  /// they are computed with.
  bool blocks_in_files = false;
  std::int64_t context_rank = 0;  ///< of those that divide sequences: the first one has most rows
};
/// The shapes behind a job's paths, read once, as a rank has them.
struct JobModels {
  std::optional<ModelRole> actor, reference, critic, reward;
  [[nodiscard]] std::optional<ModelRole>& slot(spec::ModelId model);
  /// A model of the job's recipe.
  [[nodiscard]] const ModelRole& at(spec::ModelId model) const;
};
[[nodiscard]] Result<JobModels> read_models(const spec::Job& job, const spec::Recipe& recipe,
                                            spec::Dtype compute, std::int64_t rank = 0);

/// What forward and backward compute in.
[[nodiscard]] spec::Dtype compute_dtype(const spec::Job& job, const Target& target);
/// The optimizer of a trained model; read_models has checked that the types go together.
[[nodiscard]] spec::OptimizerSpec optimizer_of(const ModelRole& role, spec::Dtype compute);
/// Bytes of its elements.
[[nodiscard]] std::uint64_t compute_width(const spec::Job& job, const Target& target);

/// What the ranks that divide it in training give each other of it to generate, where they are divided otherwise there.
[[nodiscard]] spec::TransferSizes transfers_to_generate(const ModelRole& role);
/// Units that training steps: the adapters', or the base's without them.
[[nodiscard]] std::vector<spec::FlatUnit> trained_units(const ModelRole& role);
/// Where their optimizer states are.
[[nodiscard]] spec::StatePlacement placement_of(const ModelRole& role, spec::Dtype compute);
/// What rests on the host of a model whose weights are streamed, or sliced.
struct HostedUnits {
  bool blocks = false;  ///< of streamed ones
  bool tables = false;  ///< the embedding and the head, too, where they can
  bool slice = false;   ///< of sliced ones
  step::RestsOnDisk on_disk{};
  bool gradient_slice = false;  ///< of sliced ones
};
/// Of each trained unit, whether its weights and gradients rest there.
[[nodiscard]] std::vector<bool> on_host(const ModelRole& role, HostedUnits hosted);
/// How ranks divide the weights of a model of which they keep slices.
[[nodiscard]] spec::UnitSlices weight_slices(const ModelRole& role, spec::Dtype compute);
/// Of a rank's slice each unit's bytes: the role's rank, or the one that has most.
[[nodiscard]] std::vector<Bytes> slice_bytes(const ModelRole& role, spec::Dtype compute);
/// What streamed states are stepped in, on the rank that has most.
[[nodiscard]] step::UpdateParts update_parts(const ModelRole& role, spec::Dtype compute,
                                             HostedUnits hosted);

/// Of a slot: the largest part of any rank.
[[nodiscard]] Bytes update_slot_bytes(const ModelRole& role, spec::Dtype compute,
                                      HostedUnits hosted);

/// The same of a window of host memory, where states rest on disk.
[[nodiscard]] Bytes update_window_bytes(const ModelRole& role, spec::Dtype compute,
                                        HostedUnits hosted);

using step::kBlockSlots;
/// One a unit.
[[nodiscard]] std::vector<PartPlan> unit_parts(const std::vector<spec::FlatUnit>& units,
                                               spec::Dtype dtype);
/// The blocks of a model whose weights are streamed, in order; or as many elements of another type.
[[nodiscard]] std::vector<PartPlan> hosted_blocks(const ModelRole& role, spec::Dtype compute);
/// What comes to a slot of each: of what files have only parameters, without the padding between them.
[[nodiscard]] std::vector<PartPlan> fetched_blocks(const ModelRole& role, spec::Dtype compute,
                                                   bool on_disk);
/// A window for any of them, wherever in a page files have each parameter.
[[nodiscard]] Bytes file_window(const ModelRole& role, spec::Dtype compute);
/// Units of it outside the blocks that rest on the host, and those of them that come to the slots' memory
/// in turns. None of a model that generates: decoding reads both for each token.
struct HostedTables {
  std::vector<spec::FlatUnit> units;
  step::TableUnits turns;
  [[nodiscard]] bool has(const std::string& unit) const;
  /// The embedding, which is the first: rows of a batch are copied.
  [[nodiscard]] bool gives_rows() const;
};
/// `turns`: all that can; else a frozen embedding that only gives rows.
[[nodiscard]] HostedTables hosted_tables(const ModelRole& role, bool turns);

}  // namespace neap::plan
