#include "plan/advice.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/format.h"

namespace neap::plan {
namespace {

// A change of a job in steps: level 0 is the job as it is.
struct Tunable {
  const char* effect = "";
  int weight = 1;              ///< penalty of a step
  bool keeps_training = true;  ///< the result is the same but for rounding
  std::function<bool(spec::Job&, std::vector<std::string>&, int level)>
      turn;  ///< false: no such level
};

using Keys = std::vector<std::pair<std::string, std::int64_t*>>;

// Largest divisor of `value` that is at most value / 2^level; micro batches must divide.
std::int64_t shrink(std::int64_t value, int level) {
  std::int64_t d = std::max<std::int64_t>(1, value >> level);
  while (value % d != 0) --d;
  return d;
}

bool shrink_keys(const Keys& keys, std::vector<std::string>& overrides, int level) {
  bool changed = false;
  bool further = false;  // than the level before
  for (const auto& [key, field] : keys) {
    further = further || shrink(*field, level) != shrink(*field, level - 1);
    const std::int64_t smaller = shrink(*field, level);
    if (smaller == *field) continue;
    *field = smaller;
    overrides.push_back(format("{}={}", key, smaller));
    changed = true;
  }
  return changed && further;
}

Keys training_micro_batches(spec::Job& j) {
  if (!j.has_rollout())
    return {{"data.micro_batch_size_per_gpu", &j.data.micro_batch_size_per_gpu}};
  Keys keys = {{"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
                &j.actor.ppo_micro_batch_size_per_gpu}};
  if (j.has_critic())
    keys.emplace_back("critic.ppo_micro_batch_size_per_gpu",
                      &j.critic.ppo_micro_batch_size_per_gpu);
  return keys;
}

Keys inference_micro_batches(spec::Job& j) {
  if (!j.has_rollout()) return {};
  // Only keys that are set; a zero takes the value of another key.
  Keys keys = {{"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
                &j.rollout.log_prob_micro_batch_size_per_gpu}};
  if (j.reference_micro_batch_size_per_gpu > 0)
    keys.emplace_back("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
                      &j.reference_micro_batch_size_per_gpu);
  if (j.reward_micro_batch_size_per_gpu > 0)
    keys.emplace_back("reward_model.micro_batch_size_per_gpu", &j.reward_micro_batch_size_per_gpu);
  if (j.critic.forward_micro_batch_size_per_gpu > 0)
    keys.emplace_back("critic.forward_micro_batch_size_per_gpu",
                      &j.critic.forward_micro_batch_size_per_gpu);
  return keys;
}

std::vector<Tunable> tunables(const spec::Job& job) {
  std::vector<Tunable> list;
  list.push_back({"smaller micro batches in training: same result, more passes", 1, true,
                  [](spec::Job& j, std::vector<std::string>& o, int level) {
                    return shrink_keys(training_micro_batches(j), o, level);
                  }});
  list.push_back({"smaller micro batches in inference: same result, more passes", 1, true,
                  [](spec::Job& j, std::vector<std::string>& o, int level) {
                    return shrink_keys(inference_micro_batches(j), o, level);
                  }});
  if (job.has_rollout()) {
    list.push_back({"fewer sequences decoded together: same result, slower generation", 1, true,
                    [](spec::Job& j, std::vector<std::string>& o, int level) {
                      const std::int64_t now = j.rollout_batch();
                      if (now >> level < 1) return false;
                      j.rollout.batch_size = shrink(now, level);
                      o.push_back(
                          format("actor_rollout_ref.rollout.batch_size={}", j.rollout.batch_size));
                      return j.rollout.batch_size != now;
                    }});
  }
  const auto keeps = [](const spec::ModelConfig& model) {
    return model.checkpoint_mode() != spec::CheckpointMode::kFull;
  };
  const bool actor_keeps = keeps(job.actor_model);
  const bool critic_keeps = job.has_critic() && keeps(job.critic.model);
  if (actor_keeps || critic_keeps) {
    list.push_back({"recompute blocks in backward: same result, a third more compute in training",
                    2, true, [=](spec::Job& j, std::vector<std::string>& o, int level) {
                      if (actor_keeps) {
                        j.actor_model.activation_checkpointing = "full";
                        o.emplace_back("actor_rollout_ref.model.activation_checkpointing=full");
                      }
                      if (critic_keeps) {
                        j.critic.model.activation_checkpointing = "full";
                        o.emplace_back("critic.model.activation_checkpointing=full");
                      }
                      return level == 1;
                    }});
  }
  const bool actor_full = job.actor_model.lora.rank == 0;
  const bool critic_full = job.has_critic() && job.critic.model.lora.rank == 0;
  if (actor_full || critic_full) {
    list.push_back({"train LoRA adapters instead of all weights: another training", 8, false,
                    [=](spec::Job& j, std::vector<std::string>& o, int level) {
                      if (actor_full) {
                        j.actor_model.lora.rank = 16;
                        o.emplace_back("actor_rollout_ref.model.lora_rank=16");
                      }
                      if (critic_full) {
                        j.critic.model.lora.rank = 16;
                        o.emplace_back("critic.model.lora_rank=16");
                      }
                      return level == 1;
                    }});
  }
  list.push_back({"shorter responses: another training", 6, false,
                  [](spec::Job& j, std::vector<std::string>& o, int level) {
                    const std::int64_t shorter = j.data.max_response_length >> level;
                    if (shorter < 8) return false;
                    j.data.max_response_length = shorter;
                    o.push_back(format("data.max_response_length={}", shorter));
                    return true;
                  }});
  return list;
}

// Some models cannot take a change (a rank over their width); such a change is no candidate.
bool least_of(const spec::Job& job, const Target& target, Bytes& least) {
  if (!job.validate().ok()) return false;
  const Result<Bytes> found = least_capacity(job, target);
  if (!found.ok()) return false;
  least = *found;
  return true;
}

}  // namespace

std::vector<Suggestion> find_knobs(const spec::Job& job, const Target& target) {
  Bytes now;
  if (!least_of(job, target, now)) return {};
  std::vector<Suggestion> suggestions;
  for (const Tunable& tunable : tunables(job)) {
    Suggestion best;
    best.min_capacity = now;
    // As far as it helps; of a change in the training only the first step.
    std::vector<std::string> last;
    for (int level = 1; level <= (tunable.keeps_training ? 12 : 1); ++level) {
      spec::Job changed = job;
      Suggestion suggestion;
      suggestion.effect = tunable.effect;
      if (!tunable.turn(changed, suggestion.overrides, level) || suggestion.overrides == last)
        break;
      last = suggestion.overrides;
      if (!least_of(changed, target, suggestion.min_capacity)) break;
      if (suggestion.min_capacity < best.min_capacity) best = suggestion;
    }
    if (best.min_capacity < now) suggestions.push_back(std::move(best));
  }
  std::stable_sort(
      suggestions.begin(), suggestions.end(),
      [](const Suggestion& a, const Suggestion& b) { return a.min_capacity < b.min_capacity; });
  return suggestions;
}

namespace {

/// A level for each tunable.
struct Combination {
  std::vector<int> levels;
  int penalty = 0;
  bool keeps_training = true;
  [[nodiscard]] int depth() const { return std::accumulate(levels.begin(), levels.end(), 0); }
};

// Combinations of the tunables' levels, in order of penalty.
std::vector<Combination> combinations(const spec::Job& job, const std::vector<Tunable>& list) {
  constexpr int kMostLevels = 6;
  std::vector<Combination> all = {{}};
  for (const Tunable& tunable : list) {
    std::vector<Combination> wider;
    for (int level = 0; level <= kMostLevels; ++level) {
      spec::Job probe = job;
      std::vector<std::string> unused;
      if (level > 0 && !tunable.turn(probe, unused, level)) break;
      for (Combination c : all) {
        c.levels.push_back(level);
        c.penalty += level * tunable.weight;
        c.keeps_training = c.keeps_training && (level == 0 || tunable.keeps_training);
        wider.push_back(std::move(c));
      }
    }
    all = std::move(wider);
  }
  std::stable_sort(all.begin(), all.end(), [](const Combination& a, const Combination& b) {
    return a.penalty < b.penalty;
  });
  return all;
}

// The job with the combination; false where the keys contradict each other.
bool apply(const Combination& c, const std::vector<Tunable>& list, spec::Job& job, Fit& fit) {
  for (std::size_t k = 0; k < list.size(); ++k) {
    if (c.levels[k] == 0) continue;
    (void)list[k].turn(job, fit.overrides, c.levels[k]);
    fit.effects.push_back(list[k].effect);
  }
  return job.validate().ok();
}

}  // namespace

Result<Fit> find_fit(const spec::Job& job, const Target& target) {
  const std::vector<Tunable> list = tunables(job);
  const std::vector<Combination> all = combinations(job, list);
  Bytes smallest(~0ull);
  for (const bool keeps_training : {true, false}) {
    // If the combination with the largest changes of a kind does not fit, none of that kind does.
    const Combination* deepest = nullptr;
    for (const Combination& c : all) {
      if (c.keeps_training == keeps_training &&
          (deepest == nullptr || c.depth() > deepest->depth()))
        deepest = &c;
    }
    spec::Job changed = job;
    Fit unused;
    Bytes least;
    if (deepest == nullptr || !apply(*deepest, list, changed, unused) ||
        !least_of(changed, target, least))
      continue;
    smallest = std::min(smallest, least);
    if (least > target.capacity) continue;
    for (const Combination& c : all) {
      if (c.keeps_training != keeps_training) continue;
      changed = job;
      changed.memory.residency = "auto";
      Fit found;
      if (!apply(c, list, changed, found)) continue;
      Result<MemoryPlan> plan = cheapest_plan(changed, target);
      if (!plan.ok()) continue;
      found.plan = std::move(plan).value();
      return found;
    }
  }
  return Status(ErrorCode::kDoesNotFit,
                format("No combination of micro batches, recomputation, LoRA and response length "
                       "fits into {}; the least that was found is {}",
                       target.capacity, smallest));
}

}  // namespace neap::plan
