#include "plan/search/home_options.h"

#include <algorithm>
#include <numeric>

#include "plan/results/legal_homes.h"

namespace neap::plan {
namespace {

// Whether host memory is unlimited and may be used. Disks then save nothing and are slower.
bool host_is_enough(const spec::Job& job, const Target& target, bool is_fixed) {
  return job.memory.host_budget.is_zero() && target.host_memory.is_zero() &&
         job.memory.optimizer_offload.automatic && job.memory.allows(spec::Measure::kStream) &&
         !is_fixed;
}

bool may_offload(const spec::Job& job, const spec::Recipe& recipe, const ModelRole& role) {
  const std::vector<spec::ModelId> models = spec::streamable(recipe);
  return job.residency() != spec::Residency::kAll &&
         job.memory.allows(spec::Measure::kStreamWeights) &&
         std::find(models.begin(), models.end(), role.id) != models.end() &&
         exceeds_buffers(recipe.find(role.id)->storage, role);
}

std::vector<spec::ModelHomes> updates(const spec::Job& job, const ModelRole& role, bool disks) {
  std::vector<spec::ModelHomes> out;
  if (!role.trained) return {spec::ModelHomes()};
  const spec::UpdateChoice choice = job.memory.optimizer_offload;
  const bool stays = choice.automatic && job.residency() == spec::Residency::kAll;
  for (std::size_t m = 0; m < spec::kUpdateModes; ++m) {
    const spec::ModelHomes homes{.update = static_cast<spec::UpdateMode>(m)};
    if (!choice.automatic && choice.mode != homes.update) continue;
    const bool staged = spec::is_staged(homes.states());
    if (homes.states() != spec::Home::kDevice &&
        (stays || !(staged ? disks : job.memory.allows(spec::Measure::kStream))))
      continue;
    out.push_back(homes);
  }
  return out;
}

HomeCombination with(HomeCombination sum, std::size_t model, std::size_t index,
                     const HomeOption& option) {
  sum.options[model] = index;
  sum.seconds += option.seconds;
  sum.estimate += option.seconds + option.waits;
  sum.needed = std::max(sum.needed, option.needed);
  sum.scratch = std::max(sum.scratch, option.scratch);
  sum.kept += option.kept;
  sum.host += option.host;
  return sum;
}

// In turn the next one, and the next one of those that leave the most room for groups of
// micro-batches and for what need not be recomputed.
std::vector<HomeCombination> with_most_room(const std::vector<HomeCombination>& all) {
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::size_t> roomy = order;
  std::stable_sort(roomy.begin(), roomy.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(all[a].needed, all[a].scratch) < std::pair(all[b].needed, all[b].scratch);
  });
  std::vector<HomeCombination> out;
  std::vector<bool> taken(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::size_t next : {order[i], roomy[i]}) {
      if (taken[next]) continue;
      taken[next] = true;
      out.push_back(all[next]);
    }
  }
  return out;
}

}  // namespace

bool is_resident(const spec::ModelHomes& homes) {
  return homes.layers == spec::Home::kDevice && homes.inputs == spec::Home::kDevice;
}

std::vector<spec::ModelHomes> permitted_homes(const spec::Job& job, const Target& target,
                                              const ModelRole& role,
                                              const std::vector<ModelChoice>& fixed,
                                              bool offloads) {
  const spec::Recipe recipe = spec::describe(job);
  const bool disks =
      job.memory.allows(spec::Measure::kDisk) && !host_is_enough(job, target, !fixed.empty());
  std::vector<spec::ModelHomes> all = updates(job, role, disks);
  for (const auto home : spec::kHomes) {
    const std::size_t before = offloads && may_offload(job, recipe, role) ? all.size() : 0;
    for (const spec::HomeTraits& to : spec::kOffloadHomes) {
      for (std::size_t i = 0; i < before && (disks || !to.staged); ++i) {
        spec::ModelHomes homes = all[i];
        homes.*home = to.home;
        all.push_back(homes);
      }
    }
  }
  const ModelChoice* const wanted = choice_for(fixed, role.id);
  std::vector<spec::ModelHomes> out;
  for (spec::ModelHomes& homes : all) {
    if (!is_legal(recipe.find(role.id)->storage.with(homes), role)) continue;
    if (wanted != nullptr) {
      homes.together = wanted->homes.together;
      if (homes != wanted->homes) continue;
      homes.together = std::max<std::int64_t>(1, homes.together);
    }
    out.push_back(homes);
  }
  return out;
}

std::vector<HomeCombination> combinations(const std::vector<ModelOptions>& models,
                                          const HomeLimits& limits) {
  std::vector<double> rest(models.size() + 1, 0);  // the least seconds from each model on
  for (std::size_t m = models.size(); m-- > 0;) {
    double least = std::numeric_limits<double>::infinity();
    for (const HomeOption& each : models[m].options) least = std::min(least, each.seconds);
    rest[m] = rest[m + 1] + least;
  }
  std::vector<HomeCombination> all(1);
  for (std::size_t m = 0; m < models.size(); ++m) {
    std::vector<HomeCombination> wider;
    for (const HomeCombination& each : all) {
      for (std::size_t i = 0; i < models[m].options.size(); ++i) {
        HomeCombination sum = with(each, m, i, models[m].options[i]);
        if (sum.seconds + rest[m + 1] >= limits.seconds) continue;
        if (!limits.capacity.is_zero() && sum.needed > limits.capacity) continue;
        if (!limits.host.is_zero() && sum.host > limits.host) continue;
        wider.push_back(sum);
      }
    }
    all = std::move(wider);
  }
  for (HomeCombination& each : all) {
    if (limits.capacity.is_zero()) continue;
    const Bytes moved = saturating_sub(each.scratch + each.kept, limits.capacity);
    each.estimate += static_cast<double>(moved.count()) / limits.bytes_per_second;
  }
  std::stable_sort(all.begin(), all.end(), [](const HomeCombination& a, const HomeCombination& b) {
    return a.estimate < b.estimate;
  });
  return with_most_room(all);
}

}  // namespace neap::plan
