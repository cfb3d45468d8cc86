#include "plan/results/legal_homes.h"

#include <algorithm>

namespace neap::plan {
namespace {

using spec::Home;

bool are_layers_legal(const spec::ModelStorage& homes, const ModelRole& role) {
  if (homes.layers == Home::kDevice) return true;
  if (!exceeds_buffers(homes, role)) return false;
  if (!role.trains_blocks()) return true;
  // They are updated part by part with their states, which are larger and so move to disk first.
  return homes.states() != Home::kDevice && homes.states() >= homes.layers;
}

bool are_tables_legal(const spec::ModelStorage& homes, const ModelRole& role) {
  if (!homes.streams_tables()) return true;
  // Two stages exchange the gradients of a trained tied embedding.
  if (role.trains_blocks() && role.shape.pipeline.stages > 1 && role.whole.ties_table(role.head))
    return false;
  // Shards of tables are where those of the layers are. On disk, tables are in the model's files
  // only, as part of the layers' home.
  return homes.streams_layers() && !spec::is_staged(homes.tables) &&
         hosted_tables(role, true).turns.any();
}

bool are_inputs_legal(const spec::ModelStorage& homes, const ModelRole& role) {
  return !homes.streams_inputs() || (role.trained && !spec::is_staged(homes.inputs));
}

// Gradients that are not ZeRO-3 shards are where their layers are, and so are the shards.
bool are_gradients_legal(const spec::ModelStorage& homes, const ModelRole& role) {
  return !homes.streams_gradients() ||
         (role.trains_blocks() && homes.shards_weights && homes.gradients == homes.layers);
}

}  // namespace

bool exceeds_buffers(const spec::ModelStorage& homes, const ModelRole& role) {
  return homes.shards_weights || role.shape.blocks() > static_cast<std::int64_t>(kBlockSlots);
}

bool is_legal(const spec::ModelStorage& homes, const ModelRole& role) {
  return are_layers_legal(homes, role) && are_tables_legal(homes, role) &&
         are_inputs_legal(homes, role) && are_gradients_legal(homes, role);
}

std::optional<spec::ModelHomes> nearest_legal(const spec::ModelStorage& wanted,
                                              const ModelRole& role) {
  spec::ModelStorage out = wanted;
  out.gradients = out.inputs = out.tables = Home::kDevice;
  if (!is_legal(out, role)) return std::nullopt;
  for (const auto home :
       {&spec::ModelHomes::gradients, &spec::ModelHomes::inputs, &spec::ModelHomes::tables}) {
    out.*home = wanted.*home;
    if (!is_legal(out, role)) out.*home = Home::kDevice;
  }
  return out;
}

std::string_view kept_reason(spec::TagKind tag, const spec::ModelStorage& homes,
                             const ModelRole& role, const spec::Recipe& recipe) {
  constexpr std::string_view kDecoding = "decoding reads all weights for each token";
  if (tag == spec::TagKind::kBlocks) return kDecoding;
  if (tag != spec::TagKind::kWeights || homes.shards_weights) return {};
  if (homes.streams_layers())
    return role.generates ? "decoding reads the embedding and the LM head for each token"
                          : std::string_view();
  const std::vector<spec::ModelId> streamable = spec::streamable(recipe);
  if (std::find(streamable.begin(), streamable.end(), role.id) == streamable.end())
    return role.generates ? kDecoding : "the phase that reads them runs once";
  return exceeds_buffers(homes, role)
             ? std::string_view()
             : "a rank has at most two of its layers, as many as the buffers they would be loaded "
               "into";
}

}  // namespace neap::plan
