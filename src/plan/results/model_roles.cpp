#include "plan/results/model_roles.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "spec/model/checkpointing.h"
#include "spec/model/pipeline.h"
#include "weights/units_in_files.h"

namespace neap::plan {
namespace {

std::optional<ModelRole> JobModels::*member(spec::ModelId model) {
  switch (model) {
    case spec::ModelId::kActor:
      return &JobModels::actor;
    case spec::ModelId::kReference:
      return &JobModels::reference;
    case spec::ModelId::kCritic:
      return &JobModels::critic;
    case spec::ModelId::kReward:
      break;
  }
  return &JobModels::reward;
}

std::vector<spec::FlatUnit> blocks_of(const ModelRole& role) {
  std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
  std::erase_if(units, [](const spec::FlatUnit& unit) { return unit.block < 0; });
  return units;
}

// Not possible with tensor parallelism, with an adapter that is merged, or if checkpoints contain
// the base.
bool has_blocks_in_files(const spec::Job& job, const ModelRole& role, spec::Dtype compute,
                         const weights::OpenFolders& folders) {
  const bool streams =
      job.memory.allows(spec::Measure::kDisk) && job.memory.allows(spec::Measure::kStreamWeights);
  if (!streams || role.trains_blocks() || (role.trained && job.trainer.save_lora_base))
    return false;
  if (role.shape.tensor.ranks > 1 || role.ranks.slices_weights()) return false;
  std::vector<spec::FlatUnit> units = blocks_of(role);
  for (spec::FlatUnit& table : hosted_tables(role, true).units) units.push_back(std::move(table));
  return role.files.adapter.empty() && weights::has_units(folders, role.files.base, units, compute);
}

Result<ModelRole> read_role(const spec::Job& job, const spec::Recipe& recipe,
                            const spec::ModelSource& source, spec::Dtype compute, std::int64_t rank,
                            const weights::OpenFolders& folders) {
  NEAP_TRY_ASSIGN(spec::JobModel model, spec::resolve(job, recipe, source.id, rank));
  ModelRole role{std::move(model)};
  role.ranks = job.data_parallel(source.id);
  if (role.trained) {
    role.checkpoint_mode = source.trained->checkpoint_mode();
    role.checkpointing = spec::checkpointing(role.checkpoint_mode, role.shape);
    Result<spec::OptimizerSpec> optimizer = spec::OptimizerSpec::of(role.optimizer, compute);
    if (!optimizer.ok())
      return Status(optimizer.status())
          .with_context(format("checking {}'s optimizer", role.name()));
  }
  role.blocks_in_files = has_blocks_in_files(job, role, compute, folders);
  const std::int64_t length = job.max_sequence_length();
  const std::int64_t limit = role.shape.longest_sequence();
  if (length > limit) {
    return Status(ErrorCode::kInvalidArgument,
                  format("data.max_prompt_length {} + data.max_response_length {} is over the {} "
                         "positions of {} ({})",
                         job.data.max_prompt_length, job.data.max_response_length, limit,
                         role.name(), job.resolve(source.path).string()));
  }
  return role;
}

}  // namespace

std::vector<spec::FlatUnit> trained_units(const ModelRole& role) {
  return role.lora.rank > 0 ? spec::lora_layout(role.shape, role.head, role.lora)
                            : spec::flat_layout(role.shape, role.head);
}

spec::TransferSizes transfers_to_generate(const ModelRole& role) {
  std::vector<spec::FlatUnit> units = spec::flat_layout(role.whole, role.head);
  for (spec::FlatUnit& unit : spec::lora_layout(role.whole, role.head, role.lora))
    units.push_back(std::move(unit));
  return spec::transfer_sizes(role.whole, units, role.shape.tensor.ranks,
                              role.generating().tensor.ranks, spec::kTransferElements);
}

Bytes largest_of(const std::vector<PartPlan>& parts) {
  Bytes largest;
  for (const PartPlan& part : parts) largest = std::max(largest, part.bytes);
  return largest;
}

std::vector<PartPlan> rollout_parts(const ModelRole& role, spec::Dtype dtype) {
  const spec::Architecture& shape = role.generating();
  std::vector<PartPlan> parts = unit_parts(spec::flat_layout(shape, role.head), dtype);
  if (!role.generation_part) return parts;
  for (PartPlan& part : unit_parts(spec::lora_layout(shape, role.head, role.lora), dtype)) {
    part.name = spec::adapter_part(part.name);
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<PartPlan> generating_parts(const ModelRole& role, spec::Dtype dtype, bool streamed) {
  std::vector<PartPlan> parts = rollout_parts(role, dtype);
  if (!role.divides_otherwise_to_generate()) return parts;
  const auto adapters_of = [&](const spec::Architecture& shape) {
    return spec::lora_layout(shape, role.head, role.lora);
  };
  if (streamed || role.shape.pipeline.stages > 1) {
    const spec::Architecture part = spec::undivided(role.shape);
    const Bytes largest =
        std::max(largest_of(unit_parts(spec::flat_layout(part, role.head), dtype)),
                 largest_of(unit_parts(adapters_of(part), dtype)));
    parts.push_back({std::string(spec::kWholeUnitPart), Bytes(), largest});
  }
  if (role.shape.tensor.ranks > 1)
    parts.push_back({std::string(spec::kTransferPart), Bytes(),
                     spec::tensor_bytes(transfers_to_generate(role).largest, dtype)});
  return parts;
}

std::vector<bool> on_host(const ModelRole& role, const spec::ModelStorage& storage) {
  std::vector<bool> out;
  const HostedTables tables = hosted_tables(role, storage.streams_tables());
  const bool offloads = role.trains_blocks() && storage.streams_layers();
  for (const spec::FlatUnit& unit : trained_units(role))
    out.push_back(offloads && (unit.block >= 0 || tables.has(unit.name)));
  return out;
}

spec::StatePlacement placement_of(const ModelRole& role, spec::Dtype compute) {
  return {optimizer_of(role, compute), trained_units(role), role.ranks};
}

spec::UnitSlices weight_slices(const ModelRole& role, spec::Dtype compute) {
  return role.trains_blocks()
             ? placement_of(role, compute).slices()
             : spec::even_slices(spec::flat_layout(role.shape, role.head), role.ranks.shards());
}

std::vector<Bytes> slice_bytes(const ModelRole& role, spec::Dtype compute) {
  const std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
  const spec::UnitSlices slices = weight_slices(role, compute);
  const std::size_t last = units.size() - 1;
  const auto elements_of = [&](std::int64_t rank) {
    return slices.slice_first(last, rank) + slices.range(last, rank).count;
  };
  std::int64_t fullest = 0;
  for (std::int64_t rank = 1; rank < role.ranks.shards(); ++rank)
    if (elements_of(rank) > elements_of(fullest)) fullest = rank;
  std::vector<Bytes> out;
  for (std::size_t u = 0; u < units.size(); ++u)
    out.push_back(spec::tensor_bytes(slices.range(u, role.rank.value_or(fullest)).count, compute));
  return out;
}

step::UpdateParts update_parts(const ModelRole& role, spec::Dtype compute,
                               const spec::ModelStorage& storage) {
  spec::StatePlacement placement = placement_of(role, compute);
  const std::int64_t rank = role.rank.value_or(placement.fullest_rank());
  return {std::move(placement), rank, on_host(role, storage), role.trained_storage(storage)};
}

step::UpdateParts largest_parts(const ModelRole& role, spec::Dtype compute,
                                const spec::ModelStorage& storage) {
  if (!role.ranks.slices_states()) return update_parts(role, compute, storage);
  ModelRole whole = role;
  whole.ranks = {};
  return update_parts(whole, compute, storage);
}

std::vector<PartPlan> unit_parts(const std::vector<spec::FlatUnit>& units, spec::Dtype dtype) {
  std::vector<PartPlan> parts;
  parts.reserve(units.size());
  for (const spec::FlatUnit& unit : units)
    parts.push_back({unit.name, Bytes(), spec::tensor_bytes(unit.elements, dtype)});
  return parts;
}

std::vector<PartPlan> hosted_blocks(const ModelRole& role, spec::Dtype compute) {
  return unit_parts(blocks_of(role), compute);
}

std::vector<PartPlan> fetched_blocks(const ModelRole& role, spec::Dtype compute,
                                     spec::Home layers) {
  std::vector<PartPlan> out = hosted_blocks(role, compute);
  if (!role.reads_files(layers)) return out;
  const std::vector<spec::FlatUnit> blocks = blocks_of(role);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].bytes = Bytes();
    for (const spec::Parameter& parameter : blocks[i].parameters)
      out[i].bytes += spec::tensor_bytes(parameter.elements(), compute);
  }
  return out;
}

Bytes file_window(const ModelRole& role, spec::Dtype compute) {
  Bytes most;
  for (const spec::FlatUnit& block : blocks_of(role)) {
    Bytes taken;
    for (const spec::Parameter& parameter : block.parameters)
      taken += round_up(spec::tensor_bytes(parameter.elements(), compute) + step::kWindowPage - 1_B,
                        step::kWindowPage);
    most = std::max(most, taken);
  }
  return most;
}

bool HostedTables::has(const std::string& unit) const {
  return std::any_of(units.begin(), units.end(),
                     [&](const spec::FlatUnit& each) { return each.name == unit; });
}

bool HostedTables::gives_rows() const {
  return !units.empty() && units.front().find(spec::Module::kTokenEmbedding) != nullptr;
}

HostedTables hosted_tables(const ModelRole& role, bool turns) {
  HostedTables out;
  // Without loading into buffers, an update would have to change it on the device.
  if (role.generates || (role.trains_blocks() && !turns)) return out;
  const bool tied = role.ties_table();
  for (spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head)) {
    const bool table =
        unit.parameters.size() == 1 && unit.find(spec::Module::kTokenEmbedding) != nullptr;
    if (table && (turns || !tied)) {
      if (role.trains_blocks()) out.turns.embedding = out.units.size();
      if (tied) out.turns.head = out.units.size();
      out.units.push_back(std::move(unit));
    } else if (turns && unit.find(spec::Module::kLmHead) != nullptr) {
      out.turns.head = out.units.size();
      out.units.push_back(std::move(unit));
    }
  }
  return out;
}

std::optional<ModelRole>& JobModels::slot(spec::ModelId model) {
  return this->*member(model);
}

const ModelRole& JobModels::at(spec::ModelId model) const {
  return (this->*member(model)).value();
}

spec::Dtype compute_dtype(const spec::Job& job, const Target& target) {
  if (job.device.dtype == "auto")
    return target.cuda ? spec::Dtype::kBfloat16 : spec::Dtype::kFloat32;
  return *spec::parse_dtype(job.device.dtype);
}

step::OwnKernels own_kernels(const spec::Job& job, const Target& target) {
  return {target.cuda && target.own_kernels && job.device.takes_own_kernels(), target.warp_groups,
          target.multiprocessors};
}

spec::OptimizerSpec optimizer_of(const ModelRole& role, spec::Dtype compute) {
  return *spec::OptimizerSpec::of(role.optimizer, compute);
}

Result<JobModels> read_models(const spec::Job& job, const spec::Recipe& recipe, spec::Dtype compute,
                              std::int64_t rank, const weights::OpenFolders& folders) {
  JobModels models;
  for (const spec::ModelSource& source : recipe.models) {
    NEAP_TRY_ASSIGN(models.slot(source.id), read_role(job, recipe, source, compute, rank, folders));
  }
  if (models.reference && models.reference->whole.vocab_size != models.actor->whole.vocab_size) {
    return Status(ErrorCode::kInvalidArgument,
                  format("The reference model has a vocabulary of {}, the actor one of {}: their "
                         "log-probabilities cannot be compared",
                         models.reference->whole.vocab_size, models.actor->whole.vocab_size));
  }
  return models;
}

}  // namespace neap::plan
