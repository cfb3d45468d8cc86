#include "plan/counting/tags.h"

#include <algorithm>

#include "base/format.h"
#include "plan/counting/buffer_regions.h"
#include "plan/counting/counted_backend.h"
#include "plan/counting/nccl_memory.h"
#include "plan/results/legal_homes.h"
#include "spec/model/pipeline.h"
#include "step/generation/decode_graphs.h"
#include "step/model/page_table.h"
#include "step/pipeline/pipeline_schedule.h"
#include "step/units/block_buffers.h"
#include "step/units/gradient_slots.h"

namespace neap::plan {
namespace {

// Rounding up a region of this many granules wastes at most this fraction.
constexpr std::uint64_t kGranulesPerRegion = 32;
// A staging buffer of rollout weights that pass through a file.
constexpr Bytes kStoredBuffer = 64_MiB;

std::vector<PartPlan> optimizer_parts(const ModelRole& role, spec::Dtype dtype) {
  std::vector<PartPlan> parts;
  for (const spec::StatePart& part : placement_of(role, dtype).parts())
    parts.push_back({part.name, Bytes(), part.bytes});
  return parts;
}

std::vector<PartPlan> key_value_parts(const spec::Job& job, const ModelRole& role,
                                      spec::Dtype dtype) {
  // Keys and values: a row of num_key_value_heads * head_dim each, for every layer and position.
  const spec::Architecture& shape = role.generating();
  const step::CacheShape cache = step::cache_shape(job);
  const std::int64_t elements =
      2 * shape.blocks() * shape.num_key_value_heads * shape.head_dim * cache.tokens();
  std::vector<PartPlan> parts = {{"kv", Bytes(), spec::tensor_bytes(elements, dtype)}};
  if (cache.paged())
    parts.push_back({std::string(step::kPageTablePart), Bytes(),
                     spec::tensor_bytes(cache.rows * cache.row_pages(), spec::Dtype::kInt64)});
  return parts;
}

// With offloaded weights, the units that stay on the device.
std::vector<spec::FlatUnit> resident_units(const ModelRole& role, bool tables) {
  std::vector<spec::FlatUnit> units = spec::flat_layout(role.shape, role.head);
  const HostedTables hosted = hosted_tables(role, tables);
  std::erase_if(
      units, [&](const spec::FlatUnit& unit) { return unit.block >= 0 || hosted.has(unit.name); });
  return units;
}

// The inputs of each block for a group of micro-batches, if they are offloaded.
void add_inputs(HostedPlan& to, const spec::Job& job, const spec::Recipe& recipe,
                const ModelRole& role, spec::Dtype dtype) {
  const spec::Phase* const phase = recipe.training_phase(role.id);
  if (phase == nullptr || !phase->storage.streams_inputs()) return;
  const std::int64_t all = micro_batches(job, *phase);
  const spec::PipelineStage& stage = role.shape.pipeline;
  if (stage.stages > 1)
    to.input_passes = step::inputs_kept(step::shape_of(stage, all), stage.stage);
  const std::int64_t rows = to.input_passes * std::min(phase->storage.together, all) *
                            role.shape.tensor.rows_of(micro_batch_spans(job, *phase).rows());
  to.inputs = hosted_blocks(role, dtype);
  for (PartPlan& block : to.inputs)
    block.bytes = spec::tensor_bytes(rows * role.shape.hidden_size, dtype);
}

HostedPlan hosted_weights(const spec::Job& job, const spec::Recipe& recipe, const ModelRole& role,
                          spec::Dtype dtype) {
  const spec::ModelStorage& storage = recipe.find(role.id)->storage;
  HostedPlan out;
  out.home = storage.layers;
  const HostedTables hosted = hosted_tables(role, storage.streams_tables());
  out.blocks = hosted_blocks(role, dtype);
  out.tables = unit_parts(hosted.units, dtype);
  out.turns = hosted.turns;
  add_inputs(out, job, recipe, role, dtype);
  if (role.reads_files(out.home)) out.file_window = file_window(role, dtype);
  if (!role.trains_blocks()) return out;
  const spec::Dtype gradients = optimizer_of(role, dtype).gradients;
  out.gradients = hosted_blocks(role, gradients);
  out.table_gradients = unit_parts(hosted.units, gradients);
  return out;
}

Bytes gradient_slice_bytes(const ModelRole& role, spec::Dtype dtype) {
  const spec::StatePlacement placement = placement_of(role, dtype);
  return spec::tensor_bytes(placement.slice_elements(), placement.optimizer().gradients);
}

// Buffers where backward accumulates sharded gradients: of two units, and of a tied embedding,
// which gets gradients at both ends. `on_host`: they are followed by space where gradients of these
// units are reduced on any rank.
std::vector<PartPlan> gradient_slots(const ModelRole& role, spec::Dtype dtype, bool on_host) {
  const spec::Dtype gradients = optimizer_of(role, dtype).gradients;
  std::vector<PartPlan> whole, own;
  const auto add = [&](std::vector<PartPlan>& to, std::string name, std::int64_t elements) {
    auto part =
        std::find_if(to.begin(), to.end(), [&](const PartPlan& each) { return each.name == name; });
    if (part == to.end()) part = to.insert(part, PartPlan{std::move(name), Bytes(), Bytes()});
    part->bytes = std::max(part->bytes, spec::tensor_bytes(elements, gradients));
  };
  const spec::StatePlacement placement = placement_of(role, dtype);
  for (std::size_t u = 0; u < placement.units().size(); ++u) {
    const spec::FlatUnit& unit = placement.units()[u];
    const std::string_view slot = step::gradient_slot(unit, role.shape, role.head);
    const std::vector<std::int64_t>& counts = placement.counts(u);
    add(whole, std::string(slot), unit.elements);
    if (on_host) add(own, step::own_slot(slot), *std::max_element(counts.begin(), counts.end()));
  }
  whole.insert(whole.end(), own.begin(), own.end());
  return whole;
}

// Staging buffer for a shard on disk: for the largest range of any rank, wherever it starts within
// a page.
Bytes slice_window(const ModelRole& role, const spec::UnitSlices& slices, spec::Dtype dtype) {
  const std::size_t units = spec::flat_layout(role.shape, role.head).size();
  std::int64_t most = 0;
  for (std::size_t u = 0; u < units; ++u)
    for (const std::int64_t count : slices.counts(u)) most = std::max(most, count);
  return round_up(spec::tensor_bytes(most, dtype), step::kWindowPage) + step::kWindowPage;
}

std::vector<PartPlan> update_slots(Bytes bytes) {
  std::vector<PartPlan> parts;
  for (std::size_t i = 0; i < step::kUpdateSlots; ++i)
    parts.push_back({format("slot.{}", i), Bytes(), bytes});
  return parts;
}

// Whether it generates with its own tables, and with the blocks that it trains.
bool generates_with_own_blocks(const ModelRole& role, const spec::ModelStorage& storage) {
  return storage.streams_layers() && !role.generation_part;
}

// For a tag that does not consist of block buffers.
std::vector<PartPlan> tag_parts(const spec::Job& job, const spec::Recipe& recipe,
                                const JobModels& models, spec::TagId tag, spec::Dtype dtype) {
  const ModelRole& role = models.at(tag.model);
  const auto adapters = [&] { return spec::lora_layout(role.shape, role.head, role.lora); };
  const auto base = [&] { return spec::flat_layout(role.shape, role.head); };
  const spec::ModelStorage& storage = recipe.find(tag.model)->storage;
  const bool streams = storage.streams_layers();
  switch (tag.kind) {
    case spec::TagKind::kWeights:
      if (storage.shards_weights)
        return {{std::string(spec::kSlicePart), Bytes(),
                 spec::tensor_bytes(weight_slices(role, dtype).slice_elements(), dtype)}};
      return unit_parts(streams ? resident_units(role, storage.streams_tables()) : base(), dtype);
    case spec::TagKind::kBuffers:
      break;
    case spec::TagKind::kBlocks:
      return generates_with_own_blocks(role, storage) ? hosted_blocks(role, dtype)
                                                      : generating_parts(role, dtype, streams);
    case spec::TagKind::kAdapter:
      return unit_parts(adapters(), dtype);
    case spec::TagKind::kUnitGradients:
      return gradient_slots(role, dtype, storage.streams_gradients());
    case spec::TagKind::kGradients:
      if (storage.shards_gradients)
        return {{std::string(spec::kSlicePart), Bytes(), gradient_slice_bytes(role, dtype)}};
      return unit_parts(streams && role.trains_blocks()
                            ? resident_units(role, storage.streams_tables())
                            : trained_units(role),
                        optimizer_of(role, dtype).gradients);
    case spec::TagKind::kOptimizer: {
      if (!storage.streams_states()) return optimizer_parts(role, dtype);
      return update_slots(largest_parts(role, dtype, storage).slot_bytes());
    }
    case spec::TagKind::kKeyValues:
      return key_value_parts(job, role, dtype);
    case spec::TagKind::kGraphs:  // size_graphs()
    case spec::TagKind::kGraphNodes:
    case spec::TagKind::kPeers:
      break;
  }
  return {};
}

bool contains(const std::vector<spec::TagId>& list, spec::TagId tag) {
  return std::find(list.begin(), list.end(), tag) != list.end();
}

Contents contents_of(const spec::Recipe& recipe, spec::TagId tag) {
  const bool discarded =
      std::any_of(recipe.phases.begin(), recipe.phases.end(),
                  [&](const spec::Phase& p) { return contains(p.discards, tag); });
  const bool slots =
      tag.kind == spec::TagKind::kOptimizer && recipe.find(tag.model)->storage.streams_states();
  if (discarded || slots || spec::is_scratch(tag.kind)) return Contents::kScratch;
  return recipe.frozen(tag) ? Contents::kFrozen : Contents::kLive;
}

Need need_of(const spec::Phase& phase, spec::TagId tag) {
  if (contains(phase.needs, tag)) return Need::kNeed;
  return contains(phase.discards, tag) ? Need::kDrop : Need::kOptional;
}

void place(TagPlan& tag, std::vector<RegionPlan> regions, Bytes granularity) {
  tag.regions = std::move(regions);
  for (const RegionPlan& region : tag.regions) tag.bytes += round_up(region.bytes, granularity);
}

// With several groups per mini-batch: gradients of a tied embedding's rows, and their tokens.
Bytes tied_rows(const spec::Job& job, const spec::Recipe& recipe, const ModelRole& role,
                spec::Dtype dtype) {
  if (!role.trains_blocks() || !role.ties_table() || !role.shape.embeds()) return {};
  if (role.ranks.slices_gradients()) return {};  // they are reduced with each group
  const std::int64_t width = spec::flat_layout(role.shape, role.head)
                                 .front()
                                 .find(spec::Module::kTokenEmbedding)
                                 ->shape.at(1);
  const spec::Phase& phase = *recipe.training_phase(role.id);
  const std::int64_t count = micro_batches(job, phase);
  if (role.shape.pipeline.stages == 1 && count <= phase.storage.together) return {};
  const std::int64_t rows = count * micro_batch_spans(job, phase).rows();
  return spec::tensor_bytes(rows * width, dtype) + spec::tensor_bytes(rows, spec::Dtype::kInt64);
}

HostedPlan hosted_of(const spec::Job& job, const spec::Recipe& recipe, const ModelRole& role,
                     spec::TagId tag, spec::Dtype dtype) {
  const spec::ModelStorage& storage = recipe.find(tag.model)->storage;
  if (tag.kind == spec::TagKind::kBuffers && storage.streams_layers())
    return hosted_weights(job, recipe, role, dtype);
  HostedPlan out;
  if (tag.kind == spec::TagKind::kBuffers) add_inputs(out, job, recipe, role, dtype);
  const auto windows = [&](const spec::UnitSlices& slices, spec::Dtype of, std::size_t slots) {
    out.slice_slots = slots;
    if (out.is_on_disk()) out.slice_window = slice_window(role, slices, of);
  };
  if (tag.kind == spec::TagKind::kBuffers && storage.streams_shard()) {
    out.home = storage.layers;
    const spec::UnitSlices slices = weight_slices(role, dtype);
    const std::vector<spec::FlatUnit> layout = spec::flat_layout(role.shape, role.head);
    const bool tables = step::sliced_tables(role.shape, role.head, layout).elements > 0;
    out.slice = spec::tensor_bytes(slices.slice_elements(), dtype);
    windows(slices, dtype, kBlockSlots + (tables ? 1 : 0));
  }
  if (tag.kind == spec::TagKind::kUnitGradients && storage.streams_gradients()) {
    out.home = storage.gradients;
    out.gradient_slice = gradient_slice_bytes(role, dtype);
    windows(placement_of(role, dtype).slices(), optimizer_of(role, dtype).gradients,
            gradient_slots(role, dtype, true).size() / 2);
  }
  if (tag.kind == spec::TagKind::kOptimizer && storage.streams_states()) {
    out.home = storage.states();
    out.states = optimizer_parts(role, dtype);
    if (out.is_on_disk()) out.window = largest_parts(role, dtype, storage).window_bytes();
  }
  if (tag.kind == spec::TagKind::kBlocks && recipe.stores_weights(tag.model)) {
    out.stored = rollout_parts(role, dtype);
    for (PartPlan& part : out.stored) part.bytes = round_up(part.bytes, step::kWindowPage);
    out.stored_buffer = std::min(largest_of(out.stored), kStoredBuffer);
  }
  if (tag.kind == spec::TagKind::kGradients) out.tied_rows = tied_rows(job, recipe, role, dtype);
  return out;
}

// Memory of a library: it has no regions, and no phase can free it.
TagPlan outside_tag(spec::TagKind kind, Bytes bytes, std::size_t phases) {
  TagPlan tag;
  tag.id = {kind};
  tag.contents = Contents::kScratch;
  tag.bytes = bytes;
  tag.need.assign(phases, Need::kNeed);
  tag.write.assign(phases, false);
  return tag;
}

// Everything but its contents and the phases that need it.
TagPlan sized_tag(const spec::Job& job, const spec::Recipe& recipe, const JobModels& models,
                  const Target& target, spec::TagId id) {
  const spec::Dtype dtype = compute_dtype(job, target);
  TagPlan tag;
  tag.id = id;
  if (id.kind == spec::TagKind::kBlocks)
    tag.own_blocks = generates_with_own_blocks(models.at(id.model), recipe.find(id.model)->storage);
  if (id.kind == spec::TagKind::kBuffers)
    tag.gathers = recipe.find(id.model)->storage.shards_weights;
  const spec::ModelSource* const model = recipe.find(id.model);
  if (model != nullptr && job.memory.allows(spec::Measure::kStreamWeights))
    tag.kept = kept_reason(id.kind, model->storage, models.at(id.model), recipe);
  if (id.kind != spec::TagKind::kKeyValues && id.kind != spec::TagKind::kGraphs)
    tag.hosted = hosted_of(job, recipe, models.at(id.model), id, dtype);
  const Bytes enough = target.granularity * kGranulesPerRegion;
  place(tag,
        id.kind == spec::TagKind::kBuffers
            ? buffer_regions(models.at(id.model), recipe.find(id.model)->storage, tag.hosted, dtype,
                             enough)
            : pack_regions(tag_parts(job, recipe, models, id, dtype), enough),
        target.granularity);
  return tag;
}

TagSizes::Key key_of(const spec::Job& job, const spec::Recipe& recipe, const JobModels& models,
                     spec::TagId id) {
  TagSizes::Key key;
  key.tag = id;
  key.storage = recipe.find(id.model)->storage;
  key.stores_weights = recipe.stores_weights(id.model);
  if (const spec::Phase* const phase = recipe.training_phase(id.model); phase != nullptr) {
    key.training = spec::batching_of(job, *phase);
    key.states = models.at(id.model).optimizer.state_dtype;
  }
  if (id.kind == spec::TagKind::kKeyValues) {
    key.rollout_batch = job.rollout_batch();
    key.cache_pages = step::cache_shape(job).pages;
  }
  return key;
}

}  // namespace

std::vector<RegionPlan> pack_regions(const std::vector<PartPlan>& parts, Bytes enough) {
  std::vector<RegionPlan> regions;
  for (const PartPlan& part : parts) {
    if (regions.empty() || regions.back().bytes >= enough)
      regions.push_back({part.name, Bytes(), {}});
    RegionPlan& region = regions.back();
    PartPlan placed = part;
    placed.offset = round_up(region.bytes, kPartAlignment);
    region.bytes = placed.offset + placed.bytes;
    region.parts.push_back(std::move(placed));
  }
  for (RegionPlan& region : regions) {
    if (region.parts.size() > 1)
      region.name = region.parts.front().name + ".." + region.parts.back().name;
  }
  return regions;
}

std::vector<TagPlan> build_tags(const spec::Job& job, const spec::Recipe& recipe,
                                const JobModels& models, const Target& target, TagSizes&& sizes) {
  return build_tags(job, recipe, models, target, sizes);
}

std::vector<TagPlan> build_tags(const spec::Job& job, const spec::Recipe& recipe,
                                const JobModels& models, const Target& target, TagSizes& sizes) {
  std::vector<TagPlan> tags;
  for (const spec::TagId id : recipe.tags) {
    const TagSizes::Key key = key_of(job, recipe, models, id);
    const auto known = sizes.known.find(key);
    TagPlan tag =
        known != sizes.known.end()
            ? known->second
            : sizes.known.emplace(key, sized_tag(job, recipe, models, target, id)).first->second;
    tag.contents = contents_of(recipe, id);
    for (const spec::Phase& phase : recipe.phases) {
      tag.need.push_back(need_of(phase, id));
      tag.write.push_back(contains(phase.writes, id));
    }
    tags.push_back(std::move(tag));
  }
  if (target.cuda && job.ranks() > 1)
    tags.push_back(outside_tag(spec::TagKind::kPeers, peers_bytes(job, NcclSettings::of_process()),
                               recipe.phases.size()));
  return tags;
}

void size_graphs(std::vector<TagPlan>& tags, const std::vector<PhasePlan>& phases,
                 Bytes granularity) {
  const auto graphs = std::find_if(tags.begin(), tags.end(), [](const TagPlan& tag) {
    return tag.id.kind == spec::TagKind::kGraphs;
  });
  if (graphs == tags.end()) return;
  Bytes scratch, nodes;
  for (const PhasePlan& phase : phases) {
    scratch = std::max(scratch, phase.graph_scratch);
    nodes = std::max(nodes, phase.graph_nodes);
  }
  place(*graphs, pack_regions({{std::string(step::kGraphScratchPart), Bytes(), scratch}}, scratch),
        granularity);
  tags.push_back(
      outside_tag(spec::TagKind::kGraphNodes, round_up(nodes, granularity), phases.size()));
}

}  // namespace neap::plan
