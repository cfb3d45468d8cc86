#include "plan/search/kept_pools.h"

#include <algorithm>
#include <vector>

#include "plan/counting/transients.h"
#include "plan/residency/step_walk.h"
#include "plan/search/drafts.h"

namespace neap::plan {
namespace {

// The phases that every step runs, in order, and between which of them pages stay.
class PoolSearch {
 public:
  PoolSearch(const spec::Job& job, const Target& target, const MemoryPlan& plan);

  [[nodiscard]] Status solve();
  void write(MemoryPlan& plan) const;

 private:
  struct Visited {
    std::size_t phase = 0;
    bool keeps = true;  // pages stay for the next one
    Bytes reserved;     // by the pool, after it
  };
  [[nodiscard]] const Visited& after(std::size_t i) const { return walk_[(i + 1) % walk_.size()]; }
  /// Pages do not stay between these phases, wherever they follow each other.
  void free_between(std::size_t phase, std::size_t next);
  [[nodiscard]] Status count(const JobModels& models);
  /// Finds a phase that has more pages than with an empty pool, and frees the pages before it.
  /// False: there is none.
  [[nodiscard]] bool free_excess();

  const MemoryPlan& plan_;
  const Target& target_;
  spec::Job job_;
  spec::Recipe recipe_;
  std::vector<Visited> walk_;
};

PoolSearch::PoolSearch(const spec::Job& job, const Target& target, const MemoryPlan& plan)
    : plan_(plan), target_(target), job_(job) {
  spec::apply(plan.changes, job_);
  recipe_ = spec::describe(job_, plan.modes);
  std::vector<Visit> visits = walk_of(plan);
  std::erase_if(visits, [&](const Visit& v) { return plan.phases[v.phase].share < 1; });
  for (const Visit& v : visits) walk_.push_back({v.phase, true, {}});
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    const Visit& next = visits[(i + 1) % visits.size()];
    const PhaseSchedule& schedule = plan.schedule[next.phase];
    const bool moves = !(next.again ? schedule.again : schedule.moves).empty();
    const auto taken = [&](std::size_t phase) { return plan.phases[phase].transient; };
    // The phase leaves at least as many pages as it takes.
    if (moves || taken(walk_[i].phase) > taken(next.phase))
      free_between(walk_[i].phase, next.phase);
  }
}

void PoolSearch::free_between(std::size_t phase, std::size_t next) {
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    if (walk_[i].phase == phase && after(i).phase == next) walk_[i].keeps = false;
  }
}

Status PoolSearch::count(const JobModels& models) {
  NEAP_TRY_ASSIGN(const cache::Settings settings, pool_settings(job_, target_));
  SharedPool pool(settings, kernel_profile(job_, target_));
  // The second round begins with the pages that the first one left.
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < walk_.size(); ++i) {
      Visited& v = walk_[i];
      const spec::Phase& phase = recipe_.phases[v.phase];
      NEAP_TRY_ASSIGN(v.reserved, pool.run(job_, models, target_, phase));
      if (!v.keeps) pool.give_back();
    }
  }
  return {};
}

bool PoolSearch::free_excess() {
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    const Visited& next = after(i);
    if (!walk_[i].keeps || next.reserved <= plan_.phases[next.phase].transient) continue;
    free_between(walk_[i].phase, next.phase);
    return true;
  }
  return false;
}

Status PoolSearch::solve() {
  const auto keeps = [](const Visited& v) { return v.keeps; };
  if (std::none_of(walk_.begin(), walk_.end(), keeps)) return {};
  NEAP_TRY_ASSIGN(JobModels models, Drafts::read(job_, target_));
  for (const ActivationPlan& kept : plan_.activations)
    models.slot(kept.model)->checkpointing = kept.checkpointing;
  do {
    NEAP_TRY(count(models));
  } while (free_excess());
  return {};
}

void PoolSearch::write(MemoryPlan& plan) const {
  for (std::size_t i = 0; i < walk_.size(); ++i) {
    if (!walk_[i].keeps) continue;
    std::vector<spec::PhaseId>& followers = plan.phases[walk_[i].phase].pool_for;
    const spec::PhaseId next = plan.phases[after(i).phase].id;
    if (std::find(followers.begin(), followers.end(), next) == followers.end())
      followers.push_back(next);
  }
}

}  // namespace

Status keep_pools(const spec::Job& configured, const Target& target, MemoryPlan& plan) {
  if (!plan.fits()) return {};
  PoolSearch search(configured, target, plan);
  NEAP_TRY(search.solve());
  search.write(plan);
  return {};
}

}  // namespace neap::plan
