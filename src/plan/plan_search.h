// Searches the fastest plan of a job under a capacity, over everything that the configuration
// leaves open.
//
// Order     Nested loops, from outer to inner. Each passes the time of the best plan so far to the
//           next.
//           1. Types of optimizer states, bfloat16 first. They change results, so a plan as
//              configured wins unless it takes 5 % more time.
//           2. Weight placement: resident, offloaded blocks, then also tables, then also inputs of
//              blocks. The next one is tried if nothing fits at any micro-batch size. The last is
//              also tried if blocks fit, because it may allow larger groups.
//           3. Micro-batch sizes: the largest that fit, all kinds together. Then each kind is
//              varied in turn, twice, one level down or up while that helps.
//           4. The drafts of that variant: every way to divide the updates or to offload models,
//              with one micro-batch or a group per load of a block.
//           5. The best checkpointing (checkpoint_search.h) and moves (residency_search.h).
// Bounds    A draft is skipped if it needs more than the capacity, or if the best plan is at least
//           as fast as its least time. The least time is all operations without recomputation or
//           optional moves.
// Fixed     choices of models and of the job's keys that are shared with other plans
//           (common_choices.h); drafts have no others.
// Threads   one.
// Cost      a search for a 7B PPO job takes 10 to 300 ms. Later searches with other capacities
//           reuse variants, drafts and minimum capacities.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "plan/job_variants.h"

namespace neap::plan {

class PlanSearch {
 public:
  using Scope = JobVariants::Scope;
  /// As JobVariants::make.
  [[nodiscard]] static Result<PlanSearch> make(const spec::Job& job, const Target& target,
                                               Scope scope, FixedChoices fixed = {});

  /// Zero means unlimited capacity. kDoesNotFit with the minimum capacity if nothing fits. The
  /// plan's `changes` lead to the job that it is for.
  [[nodiscard]] Result<MemoryPlan> fastest(Bytes capacity);
  /// The minimum capacity for which fastest() finds a plan.
  [[nodiscard]] Result<Bytes> least_capacity();

  /// The fastest plan with at least 10 % less memory, or else the plan of the minimum capacity.
  /// nullopt if `plan` already takes the minimum.
  [[nodiscard]] Result<std::optional<MemoryPlan>> smaller(const MemoryPlan& plan);
  /// The smallest plan with at least 5 % less time; its memory is accurate to 4 %. nullopt if there
  /// is none at any capacity.
  [[nodiscard]] Result<std::optional<MemoryPlan>> faster(const MemoryPlan& plan);

 private:
  // Limits of the plans that are searched.
  struct Limits {
    Bytes capacity;  // zero: unlimited
    double seconds = std::numeric_limits<double>::infinity();
  };
  using Found = Result<std::optional<MemoryPlan>>;
  explicit PlanSearch(JobVariants variants) : variants_(std::move(variants)) {}
  // The loops described above, from 1 to 4.
  Found fastest_within(Limits limits);
  Found fastest_of_states(std::size_t states, Limits limits);
  Found fastest_of_sizes(std::size_t states, WeightPlacement weights, Limits limits);
  Result<bool> has_drafts(std::size_t states, WeightPlacement weights);
  // Tries placements that offload more than `weights`.
  Status improve(MemoryPlan& best, std::size_t states, WeightPlacement weights, Limits limits);
  Found fastest_of_drafts(Variant& variant, WeightPlacement weights, Limits limits);
  // For a draft, with one micro-batch or several per load of a block.
  static Found fastest_of_groups(Drafts& drafts, MemoryPlan draft, Limits limits);

  // The draft with the minimum capacity.
  struct Closest {
    const MemoryPlan* draft = nullptr;  // null: no variant is valid
    Bytes least;                        // the largest number: no capacity is enough
  };
  enum class HostMemory { kBudget, kUnlimited };
  Result<Closest> closest(HostMemory host);
  Result<Closest> closest(std::size_t states, WeightPlacement weights, HostMemory host);
  Result<Closest> find_closest(std::size_t states, WeightPlacement weights, HostMemory host);
  Status refusal_of(Bytes capacity);
  // The capacity for the next smaller plan.
  Result<Bytes> smaller_capacity(const MemoryPlan& plan);

  JobVariants variants_;
  // Searches that were done.
  std::map<std::tuple<std::size_t, WeightPlacement, HostMemory>, Closest> closest_;
};

}  // namespace neap::plan
