// Searches the fastest plan of a job under a capacity, over everything that the configuration
// leaves open.
//
// Order   Nested loops, from the outside in. Each gets the seconds of the best plan so far as a
//         limit.
//         1. Types of optimizer states, bfloat16 first. bfloat16 changes results, so it must
//            save 5 % of the time.
//         2. All of rollout.batch_size sequences decoded together, then fewer. Fewer change
//            results, so they must save 5 % likewise.
//         3. Decoding in CUDA graphs, if the job can, then without. There, graphs with shorter
//            prefill passes are tried in the best plan of each step.
//         4. Resident weights; then offloaded blocks, or only their inputs; then also tables, also
//            inputs of blocks. With less of a model on the device there is room for larger groups
//            and for more that blocks keep, so all steps are tried unless nothing can be faster. A
//            later step must save a thousandth.
//            The best plan of each step is also tried with larger chunks of logits. Chunks change
//            the order of sums, so deterministic jobs and ranks with different plans keep the
//            default chunk.
//         5. Micro-batch sizes: the largest that fit, all kinds together. Then one kind after
//            another, twice: a level down or up as long as that helps.
//         6. The drafts of that variant: every mode of updates and weight offload, with loads of
//            blocks for one micro-batch or for groups.
//         7. The best retentions (checkpoint_search.h) and moves (residency_search.h) of a draft.
// Bounds  a draft is skipped if it needs more than the capacity, or if its lower bound is not below
//         the best plan's seconds. The bound is all operations without recomputation and optional
//         moves.
// Fixed   drafts keep the choices of models and keys that other plans share (common_choices.h).
// Cost    a search of a 7B PPO job takes 10 to 300 ms. Later searches with other capacities reuse
//         variants, drafts and minimum capacities.
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
    bool any = false;  // the first plan that is found will do
  };
  using Found = Result<std::optional<MemoryPlan>>;
  explicit PlanSearch(JobVariants variants) : variants_(std::move(variants)) {}
  // Choices outside of the loops over modes and sizes.
  struct Linked {
    std::size_t states = 0;
    JobVariants::Decoded decoded = JobVariants::Decoded::kAll;
    bool graphs = false;
  };
  // The loops described above.
  Found fastest_within(Limits limits);
  Found fastest_of_rollouts(std::size_t states, Limits limits);
  Found fastest_of_graphs(Linked linked, Limits limits);
  Found fastest_of_steps(Linked linked, Limits limits);
  Found fastest_of_sizes(Linked linked, std::size_t offload, Limits limits);
  Found fastest_of_drafts(Variant& variant, DraftKind kind, Limits limits);
  Status enlarge_logits(MemoryPlan& best);
  // The seconds that the largest chunks of logits save, if they fit.
  Result<double> saved_by_logits(const MemoryPlan& plan);
  Status shorten_prefill(MemoryPlan& best);
  // Replaces the plan by one with other modes and sizes, if that fits and is faster.
  Result<bool> replaced(MemoryPlan& best, const spec::StepModes& modes,
                        const JobVariants::Levels& levels);
  Result<bool> has_drafts(Linked linked, std::size_t offload);
  // The index of the largest sizes of which a draft needs no more than the capacity; the number of
  // sizes if none does.
  Result<std::size_t> first_that_may_fit(const std::vector<JobVariants::Levels>& sizes,
                                         Linked linked, std::size_t offload, Bytes capacity);
  Result<double> least_seconds(Linked linked);
  // Tries a draft with blocks that are loaded for one micro-batch, or for several at once.
  static Found fastest_of_groups(Drafts& drafts, MemoryPlan draft, Limits limits);

  // The draft with the minimum capacity.
  struct Closest {
    const MemoryPlan* draft = nullptr;  // null: no variant is valid
    Bytes least;                        // the largest number: no capacity is enough
  };
  enum class HostMemory { kBudget, kUnlimited };
  Result<Closest> closest(HostMemory host);
  Result<Closest> closest(std::size_t states, std::size_t offload, HostMemory host);
  Result<Closest> find_closest(std::size_t states, std::size_t offload, HostMemory host);
  Status refusal_of(Bytes capacity);
  // The capacity for the next smaller plan.
  Result<Bytes> smaller_capacity(const MemoryPlan& plan);

  JobVariants variants_;
  // Searches that were done.
  std::map<std::tuple<std::size_t, std::size_t, HostMemory>, Closest> closest_;
};

}  // namespace neap::plan
