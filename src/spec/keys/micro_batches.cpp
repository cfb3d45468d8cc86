#include "spec/keys/micro_batches.h"

#include "base/format.h"
#include "base/text.h"
#include "spec/types/wrong.h"

namespace neap::spec {
namespace {

constexpr std::size_t kNamedSizes = 8;

std::int64_t share_of(const BatchDivision& d) {
  return d.rows / d.ranks * d.sequences_of_row;
}

bool is_whole(const BatchDivision& d) {
  return d.micro >= 1 && share_of(d) % d.micro == 0;
}

std::int64_t largest_divisor(std::int64_t value, std::int64_t most) {
  std::int64_t divisor = std::min(value, most);
  while (value % divisor != 0) --divisor;
  return divisor;
}

// Divisors of `share` up to twice `asked`; only the largest ones.
std::string possible_sizes(std::int64_t share, std::int64_t asked) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t most = 2 * asked; most >= 1 && sizes.size() < kNamedSizes;) {
    sizes.insert(sizes.begin(), largest_divisor(share, most));
    most = sizes.front() - 1;
  }
  return joined(sizes, ", ");
}

}  // namespace

std::vector<BatchDivision> batch_divisions(const Job& job) {
  const auto micro = [&](std::int64_t size) { return job.packs() ? 1 : size; };
  const std::int64_t ranks = job.data_ranks();
  const std::string batch = "data.train_batch_size";
  if (job.task == Task::kEval) return {};
  // For models with another data-parallel size than the main model.
  std::vector<BatchDivision> shared;
  for (const ModelId model : job.models())
    if (const std::int64_t of_model = job.data_ranks(model); of_model != ranks)
      shared.push_back(
          {batch, job.data.train_batch_size, job.sequences_per_row(), "", 1, of_model});
  if (!job.has_rollout()) {
    shared.push_back({batch, job.data.train_batch_size, 1, "data.micro_batch_size_per_gpu",
                      micro(job.data.micro_batch_size_per_gpu), ranks});
    return shared;
  }
  // The name of the key that provides the number.
  const std::string of_actor =
      job.actor.ppo_mini_batch_size == 0 ? batch : "actor_rollout_ref.actor.ppo_mini_batch_size";
  std::vector<BatchDivision> all = {{of_actor, job.actor_mini_batch(), job.rollout.n,
                                     "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
                                     micro(job.actor.ppo_micro_batch_size_per_gpu), ranks}};
  if (job.has_critic())
    all.push_back({job.critic.ppo_mini_batch_size == 0 ? of_actor : "critic.ppo_mini_batch_size",
                   job.critic_mini_batch(), job.rollout.n, "critic.ppo_micro_batch_size_per_gpu",
                   micro(job.critic.ppo_micro_batch_size_per_gpu),
                   job.data_ranks(ModelId::kCritic)});
  all.push_back({batch, job.data.train_batch_size, job.rollout.n, "", 1, job.generating_ranks()});
  all.insert(all.end(), shared.begin(), shared.end());
  return all;
}

Status check_division(const BatchDivision& d) {
  if (d.rows % d.ranks != 0) {
    const std::int64_t below = d.rows / d.ranks * d.ranks;
    return wrong(format("{} {} cannot be shared by {} ranks: it has to be a multiple, as {}{}",
                        d.rows_key, d.rows, d.ranks, below > 0 ? format("{} or ", below) : "",
                        below + d.ranks));
  }
  if (is_whole(d)) return {};
  const std::int64_t share = share_of(d);
  std::string what = d.rows_key;
  if (d.sequences_of_row > 1) what += " x rollout.n";
  if (d.ranks > 1) what += format(" / {} ranks", d.ranks);
  if (d.sequences_of_row > 1 || d.ranks > 1) what += " =";
  return wrong(format("{} {} does not divide {} {}; possible near it: {}", d.micro_key, d.micro,
                      what, share, possible_sizes(share, d.micro)));
}

Result<std::vector<std::string>> adapt_micro_batches(const ConfigTable& table, const Job& job) {
  std::vector<std::string> adapted;
  for (const BatchDivision& d : batch_divisions(job)) {
    const bool shared = d.rows >= d.ranks && d.rows % d.ranks == 0;
    if (!shared || is_whole(d)) continue;
    const ConfigTable::Key* key = table.find(d.micro_key);
    if (key->is_set) continue;
    const std::int64_t size = largest_divisor(share_of(d), d.micro);
    NEAP_TRY(key->assign(Json(size)));
    adapted.push_back(format("{}={}", d.micro_key, size));
  }
  return adapted;
}

}  // namespace neap::spec
