// Searches the fastest plan of a job under a capacity, over everything that the configuration
// leaves open.
//
// Order   From the outside in; each step passes on how many seconds the best plan so far takes.
//         1. Types of optimizer states, bfloat16 first. That changes results, so a plan as configured
//            wins unless it takes 5 % more time.
//         2. Resident weights; streamed blocks, then tables with them, then inputs of blocks, where those
//            before fit at no size of micro-batches. Inputs are also tried where blocks fit, because they
//            may make room for larger groups.
//         3. Sizes of micro-batches: the largest that fit, all kinds together; then one kind after
//            another, twice, each a level down or up as long as that helps.
//         4. The drafts of that variant: every way to divide the updates or to stream models, with blocks
//            for one micro-batch or for groups of them.
//         5. The best retentions (checkpoint_search.h) and moves (residency_search.h) of a draft.
//         6. CUDA graphs of decoding for the best plan, then larger chunks of logits, if they fit and are
//            faster. The chunks change the order of sums. A deterministic job, and ranks with different
//            plans, keep the usual chunk.
// Bounds  A draft is left out whose least seconds, all operations without recomputation or optional
//         moves, are no better than the best plan, or that needs more than the capacity.
// Fixed   choices of models, and of the job's keys, that other plans share (common_choices.h): no draft has others.
// Cost    seconds by the device's rates. A search of a 7B PPO job takes 10 to 300 ms; later ones with
//         other capacities reuse variants, drafts and least capacities.
//
// Threads one.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "plan/search/job_variants.h"

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
  // Tries to decode in graphs, then larger chunks of logits.
  Status refine(MemoryPlan& best);
  Status take_graphs(MemoryPlan& best);
  Status enlarge_logits(MemoryPlan& best);
  // Replaces the best plan by its draft with other modes, if that fits and is faster.
  Result<bool> replaced(MemoryPlan& best, const spec::ModelModes& modes);
  // Takes a plan of less memory while graphs make it faster.
  Status take_faster_with_graphs(MemoryPlan& best);
  // The seconds that graphs save a plan, or would save it; zero where the job cannot decode in graphs.
  Result<double> saved_by_graphs(const MemoryPlan& plan);
  // Tries a draft with blocks that are loaded for one micro-batch, or for several at once.
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
