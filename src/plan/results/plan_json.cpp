// MemoryPlan as JSON, schema 1: docs/json.md.
#include <algorithm>

#include "base/format.h"
#include "plan/results/memory_plan.h"
#include "plan/results/plan_words.h"
#include "spec/job/placement.h"
#include "step/units/block_buffers.h"
#include "step/units/sliced_tables.h"
#include "step/units/update_parts.h"

namespace neap::plan {
namespace {

using spec::Home;

Json json_of(const std::vector<Move>& moves) {
  Json list = Json::array();
  for (const Move& m : moves) {
    list.push_back({{"kind", kind_word(m.kind)},
                    {"tag", to_string(m.tag)},
                    {"policy", arena_word(m.policy)},
                    {"bytes", m.bytes.count()},
                    {"copies", m.copies},
                    {"overlapped", m.behind}});
  }
  return list;
}

Json json_of(const HostedPlan& hosted) {
  Json list = Json::array();
  const auto add = [&](const char* kind, const PartPlan& part, bool disk = false,
                       bool files = false) {
    list.push_back({{"kind", kind}, {"name", part.name}, {"bytes", part.bytes.count()}});
    if (disk) list.back()["on"] = files ? "files" : "disk";
  };
  const bool disk = hosted.is_on_disk(), files = !hosted.file_window.is_zero();
  const auto add_windows = [&](std::size_t count, Bytes bytes) {
    for (std::size_t i = 0; disk && !bytes.is_zero() && i < count; ++i)
      add("staging_buffer", {format("window.{}", i), Bytes(), bytes});
  };
  for (const PartPlan& part : hosted.blocks) add("weights", part, disk, files);
  for (const PartPlan& part : hosted.tables) add("weights", part, files, files);
  for (const PartPlan& part : hosted.gradients) add("gradients", part, disk);
  for (const PartPlan& part : hosted.table_gradients) add("gradients", part);
  add_windows(step::kBlockSlots, hosted.weights_window() + hosted.gradients_window());
  for (const PartPlan& part : hosted.inputs) add("inputs", part);
  const std::string slice(spec::kSlicePart);
  if (!hosted.slice.is_zero()) add("weights", {slice, Bytes(), hosted.slice}, disk);
  if (!hosted.gradient_slice.is_zero())
    add("gradients", {slice, Bytes(), hosted.gradient_slice}, disk);
  add_windows(hosted.slice_slots, hosted.slice_window);
  for (const PartPlan& part : hosted.stored) add("weights", part, true);
  for (const PartPlan& part : hosted.states) add("states", part, disk);
  add_windows(step::kUpdateWindows, hosted.window);
  return list;
}

Json json_of(const PhasePlan& phase, const PhaseSchedule& scheduled) {
  Json out = Json::object();
  out["name"] = phase.name();
  out["temporary"] = phase.transient.count();
  out["temporary_allocated"] = phase.transient_allocated.count();
  out["seconds"] = phase.seconds;
  out["loaded"] = phase.fetched.count();
  out["written_back"] = phase.stored.count();
  out["disk_read"] = phase.disk_read.count();
  out["disk_written"] = phase.disk_written.count();
  out["wait_seconds"] = phase.wait_seconds;
  out["communication_bytes"] = phase.sent.count();
  out["communication_seconds"] = phase.peer_seconds;
  out["transfer_seconds"] = phase.transfer_seconds;
  out["bubble_seconds"] = phase.bubble_seconds;
  out["persistent"] = scheduled.persistent.count();
  out["peak"] = scheduled.peak.count();
  out["times"] = phase.times;
  out["share"] = phase.share;
  out["moves"] = json_of(scheduled.moves);
  out["again"] = json_of(scheduled.again);
  return out;
}

Json json_of(const RegionPlan& region) {
  Json parts = Json::array();
  for (const PartPlan& part : region.parts) {
    parts.push_back(
        {{"name", part.name}, {"offset", part.offset.count()}, {"bytes", part.bytes.count()}});
  }
  return {{"name", region.name}, {"bytes", region.bytes.count()}, {"parts", std::move(parts)}};
}

/// For the plan's tag number `t`.
Json tag_json(const MemoryPlan& plan, std::size_t t) {
  const TagPlan& tag = plan.tags[t];
  Json out = Json::object();
  out["tag"] = tag.name();
  out["bytes"] = tag.bytes.count();
  out["contents"] = contents_word(tag.contents);
  Json cells = Json::array();
  for (std::size_t p = 0; p < plan.phases.size(); ++p) cells.push_back(cell_word(plan, t, p));
  out["cells"] = std::move(cells);
  Json regions = Json::array();
  for (const RegionPlan& region : tag.regions) regions.push_back(json_of(region));
  out["regions"] = std::move(regions);
  if (!tag.hosted.empty() || !tag.hosted.stored.empty()) out["offloaded"] = json_of(tag.hosted);
  if (const TagPlan* slots = plan.slots_behind(tag)) out["rollout_weights_of"] = slots->name();
  if (!tag.kept.empty()) out["not_offloaded"] = tag.kept;
  return out;
}

Json json_of(const ActivationPlan& activations) {
  Json blocks = Json::object();
  for (const auto& [tensor, count] : activations.recomputed())
    blocks[std::string(to_string(tensor))] = count;
  return {{"model", to_string(activations.model)},
          {"activation_checkpointing", to_string(activations.mode)},
          {"recomputed", std::move(blocks)}};
}

}  // namespace

Json summary_json(const MemoryPlan& plan) {
  Json updates = Json::object();
  for (const ActivationPlan& trained : plan.activations)
    updates[std::string(to_string(trained.model))] = to_string(plan.modes.of(trained.model).update);
  const std::vector<spec::ModelId> streamed = streamed_models(plan);
  const auto names = [&](const auto& has) {
    Json list = Json::array();
    for (std::size_t m = 0; m < spec::kModels; ++m) {
      const auto model = static_cast<spec::ModelId>(m);
      if (has(model)) list.push_back(to_string(model));
    }
    return list;
  };
  const auto offloads = [&](spec::Home spec::ModelHomes::*home) {
    return names([&, home](spec::ModelId m) { return plan.modes.of(m).*home != Home::kDevice; });
  };
  Json groups = Json::object();
  for (const spec::ModelId model : streamed)
    groups[std::string(to_string(model))] = plan.modes.of(model).together;
  for (const TagPlan& tag : plan.tags)
    if (tag.gathers)
      groups[std::string(to_string(tag.id.model))] = plan.modes.of(tag.id.model).together;
  return {{"seconds", plan.seconds()},
          {"copy_seconds", plan.copy_seconds},
          {"move_seconds", plan.move_seconds},
          {"copied_per_step", plan.moved_per_step.count()},
          {"peak", plan.peak.count()},
          {"logits_chunk", plan.modes.logits_chunk},
          {"decodes_in_graphs", plan.modes.graphs},
          {"no_graphs", plan.no_graphs},
          {"host_bytes", plan.host_bytes.count()},
          {"batch_bytes", plan.batch_bytes.count()},
          {"disk_bytes", plan.disk_bytes.count()},
          {"checkpoint_copy_bytes",
           (plan.copies_checkpoints() ? plan.checkpoint_copy : Bytes()).count()},
          {"optimizer_offload", std::move(updates)},
          {"offloaded_weights", offloads(&spec::ModelHomes::layers)},
          {"offloaded_embeddings", offloads(&spec::ModelHomes::tables)},
          {"offloaded_layer_inputs", offloads(&spec::ModelHomes::inputs)},
          {"offloaded_gradients", offloads(&spec::ModelHomes::gradients)},
          {"weights_on_nvme",
           names([&](spec::ModelId m) { return spec::is_staged(plan.modes.of(m).layers); })},
          {"weights_in_model_files", names([&](spec::ModelId m) { return reads_files(plan, m); })},
          {"micro_batches_per_load", std::move(groups)},
          {"overrides", spec::assignments(plan.changes)}};
}

Json MemoryPlan::to_json() const {
  Json out = Json::object();
  out["schema"] = 1;
  out["task"] = task;
  out.update(summary_json(*this));
  out["capacity"] = capacity.count();
  out["granularity"] = granularity.count();
  out["host_budget"] = host_budget.count();
  out["fits"] = fits();
  out["peak_without_offload"] = all_resident.count();
  out["link"] = {{"to_host", link.to_host},
                 {"to_device", link.to_device},
                 {"both", link.both},
                 {"remap", link.remap}};
  out["throughput_from"] = rates_from;
  out["kernels"] = own_kernels ? "neap" : "libtorch";
  out["no_own_kernels"] = no_own_kernels.empty() ? Json() : Json(no_own_kernels);
  out["fp8"] = fp8;
  Json phase_list = Json::array();
  for (std::size_t p = 0; p < phases.size(); ++p)
    phase_list.push_back(json_of(phases[p], schedule[p]));
  out["phases"] = std::move(phase_list);
  Json tag_list = Json::array();
  for (std::size_t t = 0; t < tags.size(); ++t) tag_list.push_back(tag_json(*this, t));
  out["tags"] = std::move(tag_list);
  Json activation_list = Json::array();
  for (const ActivationPlan& a : activations) activation_list.push_back(json_of(a));
  out["activations"] = std::move(activation_list);
  return out;
}

}  // namespace neap::plan
