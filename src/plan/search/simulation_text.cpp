#include <algorithm>
#include <array>
#include <string_view>

#include "base/format.h"
#include "plan/results/placements.h"
#include "plan/results/plan_table.h"
#include "plan/search/simulation.h"

namespace neap::plan {
namespace {

struct Named {
  std::string_view name;
  double seconds = 0;
  std::string_view words;
};

// Axes of size one are left out.
std::vector<Named> named(const std::vector<spec::Mesh>& models, const StepShares& shares) {
  const auto several = [&](spec::Axis axis) {
    return std::any_of(models.begin(), models.end(),
                       [&](const spec::Mesh& mesh) { return mesh.size(axis) > 1; });
  };
  std::vector<Named> out = {{"compute", shares.compute, "operations of the device"}};
  constexpr std::array<std::string_view, spec::kAxes> kWords = {
      "transfers between pipeline stages", "data-parallel collectives",
      "context-parallel collectives", "tensor-parallel collectives"};
  for (std::size_t a = 0; a < spec::kAxes; ++a)
    if (several(spec::group_of(static_cast<spec::Axis>(a))))
      out.push_back({kAxisNames[a], shares.axes[a], kWords[a]});
  if (several(spec::Axis::kPipe)) out.push_back({"bubble", shares.bubble, "pipeline bubble"});
  out.push_back({"copies", shares.copies, "copies between the device and the host"});
  return out;
}

std::string percent(double seconds, double of) {
  return format("{:.1f} %", 100 * seconds / of);
}

Json json_of(const std::vector<spec::Mesh>& models, const StepShares& shares) {
  Json out = Json::object();
  for (const Named& share : named(models, shares)) out[std::string(share.name)] = share.seconds;
  return out;
}

}  // namespace

std::string Simulation::binds() const {
  const std::vector<Named> all = named(models, shares);
  const auto most =
      std::max_element(all.begin() + 1, all.end(),
                       [](const Named& a, const Named& b) { return a.seconds < b.seconds; });
  std::string out = format("{} {}", all.front().words, percent(shares.compute, seconds));
  if (most->seconds > 0)
    out += format("; then {} {}", most->words, percent(most->seconds, seconds));
  return out;
}

std::string Simulation::to_text() const {
  std::string out =
      format("step    {:.4g} s of {} sequences, {} tokens\n", seconds, sequences, tokens);
  out += format("speed   {:.4g} tokens/s, {:.4g} per rank, {:.4g} TFLOP/s per rank\n",
                tokens_per_second(), tokens_per_second() / static_cast<double>(mesh.ranks()),
                flops_per_rank() / 1e12);
  out += format("ranks   {}: {}; machines of {}\n", mesh.ranks(), axes_text(mesh),
                std::min(node_ranks, mesh.ranks()));
  out += format("binds   {}\n", binds());
  const MemoryPlan& most = plans.stages[plans.binding()].plan;
  out +=
      format("memory  {}{}{}\n\n", most.peak,
             stages.size() > 1 ? format(" on {}", plans.name_of(plans.binding())) : "",
             most.capacity.is_zero() ? ""
             : most.fits()           ? format(", within {}", most.capacity)
                           : format(", over {} by {}", most.capacity, most.peak - most.capacity));
  std::vector<std::string> head = {plans.alike ? "stage" : "first rank", "ranks", "layers",
                                   "memory"};
  const bool staged = !plans.forward.empty();
  if (staged) head.insert(head.end(), {"forward s", "backward s"});
  for (const Named& share : named(models, shares)) head.emplace_back(share.name);
  Table table(std::move(head));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const SimulatedStage& stage = stages[s];
    const StagePlan& of = plans.stages[s];
    std::string blocks;
    for (const ModelBlocks& model : of.models)
      if (!plans.alike || blocks.empty())
        blocks += format("{}{}", blocks.empty() ? "" : " ", model.count());
    std::vector<std::string> row = {
        std::to_string(plans.alike ? static_cast<std::int64_t>(s) + 1 : of.ranks.first),
        std::to_string(stage.ranks), std::move(blocks), to_string(of.plan.peak)};
    if (staged) {
      row.push_back(format("{:.4g}", plans.forward[s]));
      row.push_back(format("{:.4g}", plans.backward[s]));
    }
    for (const Named& share : named(models, stage.step))
      row.push_back(percent(share.seconds, seconds));
    table.add(std::move(row));
  }
  out += table.text();
  if (staged)
    out += format(
        "\n{} micro-batches per mini-batch{}{}; with equal stages the bubble would be {:.1f} % of "
        "their time\n",
        micro_batches, plans.chunks > 1 ? format(", {} chunks per stage", plans.chunks) : "",
        plans.zero_bubble ? ", zero bubble" : "", 100 * plans.bubble() / (1 + plans.bubble()));
  return out;
}

Json Simulation::to_json() const {
  Json list = Json::array();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const SimulatedStage& stage = stages[s];
    const StagePlan& plan = plans.stages[s];
    Json tags = Json::object();
    for (const TagPlan& tag : plan.plan.tags) tags[tag.name()] = tag.bytes.count();
    Json& each = list.emplace_back(plan.blocks_json());
    each["peak"] = plan.plan.peak.count();
    each["fits"] = plan.plan.fits();
    each["tags"] = std::move(tags);
    each["forward_seconds"] = plans.forward.empty() ? 0 : plans.forward[s];
    each["backward_seconds"] = plans.backward.empty() ? 0 : plans.backward[s];
    each["seconds"] = json_of(models, stage.step);
  }
  const MemoryPlan& most = plans.stages[plans.binding()].plan;
  return {{"schema", 1},
          {"ranks", mesh.ranks()},
          {"mesh", axes_json(mesh)},
          {"node_ranks", std::min(node_ranks, mesh.ranks())},
          {"micro_batches", micro_batches},
          {"chunks", plans.chunks},
          {"zero_bubble", plans.zero_bubble},
          {"sequences", sequences},
          {"tokens", tokens},
          {"step_seconds", seconds},
          {"tokens_per_second", tokens_per_second()},
          {"flops_per_rank", flops_per_rank()},
          {"seconds", json_of(models, shares)},
          {"binds", binds()},
          {"peak", most.peak.count()},
          {"capacity", most.capacity.count()},
          {"fits", most.fits()},
          {"stages", std::move(list)}};
}

}  // namespace neap::plan
