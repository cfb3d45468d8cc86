#include "plan/counting/buffer_regions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/counting/tags.h"
#include "step/units/block_buffers.h"

namespace neap::plan {
namespace {

// One for each slot; none of no bytes.
std::vector<PartPlan> block_slots(step::BufferOf what, Bytes bytes) {
  std::vector<PartPlan> parts;
  for (std::size_t i = 0; i < kBlockSlots && !bytes.is_zero(); ++i)
    parts.push_back({step::block_buffer(what, i), Bytes(), bytes});
  return parts;
}

// Buffers for gathered blocks. Tables use the memory of all block buffers.
std::vector<RegionPlan> gather_regions(const ModelRole& role, spec::Dtype dtype) {
  RegionPlan region =
      pack_regions(block_slots(step::BufferOf::kWeights, largest_of(hosted_blocks(role, dtype))),
                   Bytes(~0ull))
          .front();
  const step::SlicedTables tables =
      step::sliced_tables(role.shape, role.head, spec::flat_layout(role.shape, role.head));
  PartPlan table{step::table_buffer(step::BufferOf::kWeights), Bytes(),
                 spec::tensor_bytes(tables.elements, dtype)};
  region.bytes = std::max(region.bytes, table.bytes);
  if (tables.elements > 0) region.parts.push_back(std::move(table));
  region.name = "slots";
  return {std::move(region)};
}

// Weights, gradients and inputs of blocks. Tables use the memory of all block buffers.
std::vector<RegionPlan> slot_regions(const HostedPlan& hosted, Bytes enough) {
  std::vector<PartPlan> parts = block_slots(step::BufferOf::kWeights, largest_of(hosted.blocks));
  const auto add = [&](step::BufferOf what, Bytes bytes) {
    for (PartPlan& part : block_slots(what, bytes)) parts.push_back(std::move(part));
  };
  add(step::BufferOf::kGradients, largest_of(hosted.gradients));
  add(step::BufferOf::kInputs, hosted.pass_inputs());
  if (!hosted.turns.any()) return pack_regions(parts, enough);
  RegionPlan region = pack_regions(parts, Bytes(~0ull)).front();
  const Bytes weights = hosted.turns.head ? hosted.tables[*hosted.turns.head].bytes : Bytes();
  PartPlan table{step::table_buffer(step::BufferOf::kWeights), Bytes(),
                 std::max(weights, kPartAlignment)};
  PartPlan gradients{step::table_buffer(step::BufferOf::kGradients),
                     round_up(table.bytes, kPartAlignment), largest_of(hosted.table_gradients)};
  region.bytes = std::max(region.bytes, gradients.offset + gradients.bytes);
  region.parts.insert(region.parts.begin() + kBlockSlots, std::move(table));
  if (!hosted.gradients.empty())
    region.parts.insert(region.parts.begin() + 2 * kBlockSlots + 1, std::move(gradients));
  region.name = "slots";
  return {std::move(region)};
}

}  // namespace

std::vector<RegionPlan> buffer_regions(const ModelRole& role, const spec::ModelStorage& storage,
                                       const HostedPlan& hosted, spec::Dtype dtype, Bytes enough) {
  if (storage.streams_layers()) return slot_regions(hosted, enough);
  std::vector<RegionPlan> out;
  if (storage.shards_weights) out = gather_regions(role, dtype);
  for (RegionPlan& inputs :
       pack_regions(block_slots(step::BufferOf::kInputs, hosted.pass_inputs()), Bytes(~0ull)))
    out.push_back(std::move(inputs));
  return out;
}

}  // namespace neap::plan
