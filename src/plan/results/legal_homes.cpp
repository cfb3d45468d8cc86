#include "plan/results/legal_homes.h"

namespace neap::plan {
namespace {

using spec::Home;

std::string_view illegal_layers(const spec::ModelStorage& homes, const ModelRole& role) {
  if (!role.trains_blocks()) return {};
  if (homes.layers != Home::kDevice && homes.states() == Home::kDevice)
    return "Offloaded layers are updated part by part with their optimizer states, so these must "
           "be offloaded";
  if (homes.layers == Home::kDisk && homes.states() != Home::kDisk)
    return "Optimizer states are larger than layers, so they move to disk first";
  return {};
}

std::string_view illegal_tables(const spec::ModelStorage& homes, const ModelRole& role) {
  if (homes.layers == Home::kDevice) return "Tables are offloaded only with the layers";
  if (homes.shards_weights) return "Shards of embedding and head are where those of the layers are";
  if (homes.tables == Home::kDisk) return "Tables are on disk only in the model's files";
  if (!hosted_tables(role, true).turns.any())
    return "Decoding reads embedding and head for each token, and other units are small";
  // They exchange its gradients.
  if (role.trains_blocks() && role.shape.pipeline.stages > 1 && role.whole.ties_table(role.head))
    return "A trained tied embedding is on two stages";
  return {};
}

std::string_view illegal_inputs(const spec::ModelStorage& homes, const ModelRole& role) {
  if (!role.trained) return "A frozen model has no backward that reads layer inputs";
  if (role.shape.pipeline.stages > 1 && role.shape.pipeline.zero_bubble)
    return "Between the parts of a backward, layers keep what their products read";
  if (homes.inputs == Home::kDisk) return "Layer inputs are offloaded to host memory only";
  return {};
}

std::string_view illegal_gradients(const spec::ModelStorage& homes, const ModelRole& role) {
  if (!role.trains_blocks() || !homes.shards_weights)
    return "Gradients that are not ZeRO-3 shards are where their layers are";
  if (homes.gradients != homes.layers)
    return "A shard of the gradients is where the shard of the weights is";
  return {};
}

}  // namespace

std::string_view illegal_reason(const spec::ModelStorage& homes, const ModelRole& role) {
  std::string_view reason = illegal_layers(homes, role);
  if (reason.empty() && homes.streams_tables()) reason = illegal_tables(homes, role);
  if (reason.empty() && homes.inputs != Home::kDevice) reason = illegal_inputs(homes, role);
  if (reason.empty() && homes.streams_gradients()) reason = illegal_gradients(homes, role);
  return reason;
}

std::optional<spec::ModelHomes> nearest_legal(const spec::ModelStorage& wanted,
                                              const ModelRole& role) {
  spec::ModelStorage out = wanted;
  out.gradients = out.inputs = out.tables = Home::kDevice;
  if (!illegal_reason(out, role).empty()) return std::nullopt;
  for (const auto home :
       {&spec::ModelHomes::gradients, &spec::ModelHomes::inputs, &spec::ModelHomes::tables}) {
    out.*home = wanted.*home;
    if (!illegal_reason(out, role).empty()) out.*home = Home::kDevice;
  }
  return out;
}

}  // namespace neap::plan
