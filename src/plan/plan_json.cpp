// MemoryPlan as JSON, schema 1: docs/plan-json.md.
#include <algorithm>

#include "plan/memory_plan.h"
#include "plan/plan_words.h"

namespace neap::plan {
namespace {

Json json_of(const std::vector<Move>& moves) {
  Json list = Json::array();
  for (const Move& m : moves) {
    list.push_back({{"kind", kind_word(m.kind)},
                    {"tag", m.tag},
                    {"policy", arena_word(m.policy)},
                    {"bytes", m.bytes.count()},
                    {"copies", m.copies}});
  }
  return list;
}

Json json_of(const std::vector<WindowPlan>& windows) {
  Json list = Json::array();
  for (const WindowPlan& w : windows)
    list.push_back({{"first", w.first}, {"count", w.count}, {"bytes", w.bytes.count()}});
  return list;
}

}  // namespace

Json summary_json(const MemoryPlan& plan) {
  Json updates = Json::object();
  for (const UpdatePlan& update : plan.updated) updates[update.model] = to_string(update.mode);
  return {{"seconds", plan.seconds()},
          {"move_seconds", plan.move_seconds},
          {"moved_per_step", plan.moved_per_step.count()},
          {"peak", plan.peak.count()},
          {"host_bytes", plan.host_bytes.count()},
          {"updates", std::move(updates)},
          {"overrides", plan.overrides}};
}

Json MemoryPlan::to_json() const {
  const auto bytes = [](Bytes b) { return b.count(); };
  Json out = Json::object();
  out["schema"] = 1;
  out["task"] = task;
  out.update(summary_json(*this));
  out["capacity"] = bytes(capacity);
  out["granularity"] = bytes(granularity);
  out["host_budget"] = bytes(host_budget);
  out["fits"] = fits();
  out["all_resident"] = bytes(all_resident);
  out["link"] = {{"to_host", link.to_host},
                 {"to_device", link.to_device},
                 {"both", link.both},
                 {"remap", link.remap}};
  out["rates_from"] = rates_from;
  Json phase_list = Json::array();
  for (std::size_t p = 0; p < phases.size(); ++p) {
    Json phase = Json::object();
    phase["name"] = phases[p].name;
    phase["transient"] = bytes(phases[p].transient);
    phase["transient_allocated"] = bytes(phases[p].transient_allocated);
    phase["seconds"] = phases[p].seconds;
    phase["persistent"] = bytes(schedule[p].persistent);
    phase["peak"] = bytes(schedule[p].peak);
    phase["window"] = bytes(phases[p].window);
    phase["headroom"] = bytes(phases[p].headroom);
    phase["times"] = phases[p].times;
    phase["moves"] = json_of(schedule[p].moves);
    phase["again"] = json_of(schedule[p].again);
    phase_list.push_back(std::move(phase));
  }
  out["phases"] = std::move(phase_list);
  Json tag_list = Json::array();
  for (std::size_t t = 0; t < tags.size(); ++t) {
    const TagPlan& tag = tags[t];
    Json one = Json::object();
    one["tag"] = tag.tag;
    one["bytes"] = bytes(tag.bytes);
    one["contents"] = contents_word(tag.contents);
    Json cells = Json::array();
    for (std::size_t p = 0; p < phases.size(); ++p) cells.push_back(cell_word(*this, t, p));
    one["cells"] = std::move(cells);
    Json regions = Json::array();
    for (const RegionPlan& region : tag.regions) {
      Json parts = Json::array();
      for (const PartPlan& part : region.parts)
        parts.push_back(
            {{"name", part.name}, {"offset", bytes(part.offset)}, {"bytes", bytes(part.bytes)}});
      regions.push_back(
          {{"name", region.name}, {"bytes", bytes(region.bytes)}, {"parts", std::move(parts)}});
    }
    one["regions"] = std::move(regions);
    if (tag.streamed()) one["windows"] = json_of(tag.windows);
    tag_list.push_back(std::move(one));
  }
  out["tags"] = std::move(tag_list);
  Json activation_list = Json::array();
  for (const ActivationPlan& a : activations) {
    Json blocks = Json::object();
    for (const auto& [tensor, count] : a.recomputed())
      blocks[std::string(to_string(tensor))] = count;
    activation_list.push_back({{"model", a.model},
                               {"activation_checkpointing", to_string(a.mode)},
                               {"recomputed", std::move(blocks)}});
  }
  out["activations"] = std::move(activation_list);
  return out;
}

}  // namespace neap::plan
