#include "plan/results/placements.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/format.h"

namespace neap::plan {
namespace {

std::string placement_text(const spec::Job& job, spec::ModelId model) {
  const std::int64_t stage = job.placement(model).zero_stage;
  return format("{}{}{}{}", axes_text(job.mesh(model)),
                stage > 0 ? format(", ZeRO stage {}", stage) : "",
                job.divides_rows(model) ? ", sequence-parallel" : "",
                job.context_shard(model).ring ? ", ring attention" : "");
}

}  // namespace

std::string axes_text(const spec::Mesh& mesh) {
  std::string out;
  for (std::size_t a = 0; a < spec::kAxes; ++a)
    if (const std::int64_t size = mesh.size(static_cast<spec::Axis>(a)); size > 1)
      out += format("{}{} {}", out.empty() ? "" : " x ", kAxisNames[a], size);
  if (mesh.size(spec::Axis::kReplicas) > 1)
    out += format(", ZeRO shard group of {}", mesh.size(spec::Axis::kShards));
  return out.empty() ? "1" : out;
}

Json axes_json(const spec::Mesh& mesh) {
  Json out = Json::object();
  for (std::size_t a = 0; a < spec::kAxes; ++a)
    out[std::string(kAxisNames[a])] = mesh.size(static_cast<spec::Axis>(a));
  return out;
}

std::string placements_text(const spec::Job& job) {
  if (job.ranks() == 1) return {};
  if (job.places_models_alike())
    return format("\nRanks of every model: {}\n", placement_text(job, job.main_model()));
  std::string out = "\nRanks of each model\n";
  for (const spec::ModelId model : job.models())
    out += format("  {:<9}  {}\n", to_string(model), placement_text(job, model));
  return out;
}

Json placements_json(const spec::Job& job) {
  Json out = Json::object();
  for (const spec::ModelId model : job.models()) {
    const spec::Mesh mesh = job.mesh(model);
    Json each = axes_json(mesh);
    each["zero"] = job.placement(model).zero_stage;
    each["zero_shard_size"] = mesh.size(spec::Axis::kShards);
    each["sequence_parallel"] = job.divides_rows(model);
    each["ring_attention"] = job.context_shard(model).ring;
    out[std::string(to_string(model))] = std::move(each);
  }
  return out;
}

}  // namespace neap::plan
