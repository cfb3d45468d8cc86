// Searches the fastest plan of a job under a capacity, over everything that the configuration
// leaves open.
//
// Order   Nested loops, from the outside in. Each gets the seconds of the best plan so far as a
//         limit.
//         1. Types of optimizer states, bfloat16 first. bfloat16 changes results, so it must
//            save 5 % of the time.
//         2. All of rollout.batch_size sequences decoded together, then fewer. Fewer change
//            results, so they must save 5 % likewise.
//         3. Decoding in CUDA graphs, if the job can, then without.
//         4. All models resident; then combinations with layers, or only their inputs, off the
//            device (home_options.h). With less of a model on the device there is room for larger
//            groups and for more that blocks keep, so these are tried unless nothing can be faster.
//            They must save a thousandth.
//            The best plan of either is also tried with larger chunks of logits, and so are slower
//            plans that may become faster. Shorter prefill passes are tried to make room for
//            graphs. Chunks change the order of sums, so deterministic jobs and ranks with
//            different plans keep the default chunk.
//         5. Micro-batch sizes: the largest that fit, all kinds together. Then one kind after
//            another, twice: a level down or up as long as that helps.
//         6. The combinations of homes: in turn the one with the lowest estimate and the one that
//            leaves most room, until some in a row are not faster. Layers are loaded for one
//            micro-batch or for groups.
//         7. The best retentions (checkpoint_search.h) and moves (residency_search.h) of a draft.
// Bounds  a combination is skipped if it needs more than the capacity, or if its lower bound is not
//         below the best plan's seconds. The bound is all operations without recomputation and
//         optional moves.
// Fixed   drafts keep the choices of models and keys that other plans share (common_choices.h).
// Cost    a search of a 7B PPO job takes 10 to 300 ms. Later searches with other capacities reuse
//         variants, drafts and minimum capacities.
//
// Threads one.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <utility>

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
    bool any = false;   // the first plan that is found will do
    double margin = 0;  // slower plans may become faster with larger chunks
  };
  using Found = Result<std::optional<MemoryPlan>>;
  explicit PlanSearch(JobVariants variants) : variants_(std::move(variants)) {}
  // Choices outside of the loops over modes and sizes.
  struct Linked {
    std::size_t states = 0;
    JobVariants::Decoded decoded = JobVariants::Decoded::kAll;
    bool graphs = false;
    bool offloads = false;  // DraftKind
  };
  static DraftKind kind_of(const Linked& linked) { return {linked.offloads, linked.graphs}; }
  // The loops described above.
  Found fastest_within(Limits limits);
  Found fastest_of_rollouts(std::size_t states, Limits limits);
  Found fastest_of_graphs(Linked linked, Limits limits);
  Found fastest_of_homes(Linked linked, Limits limits);
  Found fastest_of_sizes(Linked linked, Limits limits);
  Found fastest_of_drafts(Variant& variant, DraftKind kind, Limits limits);
  // Tries larger chunks and shorter prefill passes in the best plan, and in slower ones that may
  // become faster. Returns what they save in the best one, or could save.
  Result<double> refine(Linked linked, MemoryPlan& best);
  Status enlarge_logits(MemoryPlan& best);
  // The seconds that the largest chunks of logits save, if they fit.
  Result<double> saved_by_logits(const MemoryPlan& plan);
  Status shorten_prefill(MemoryPlan& best);
  // Replaces the plan by one with other modes and sizes, if that fits and is faster.
  Result<bool> replaced(MemoryPlan& best, const spec::StepModes& modes,
                        const JobVariants::Levels& levels);
  // The index of the largest sizes of which a draft needs no more than the capacity; the number of
  // sizes if none does.
  Result<std::size_t> first_that_may_fit(const std::vector<JobVariants::Levels>& sizes,
                                         Linked linked, Bytes capacity);
  // A lower bound for plans that offload no layers; nullopt: there are none.
  Result<std::optional<double>> least_seconds(Linked linked);
  // Tries a draft with blocks that are loaded for one micro-batch, or for several at once.
  static Found fastest_of_groups(Drafts& drafts, MemoryPlan draft, Limits limits);

  // The draft with the minimum capacity.
  struct Closest {
    const MemoryPlan* draft = nullptr;  // null: no variant is valid
    Bytes least;                        // the largest number: no capacity is enough
  };
  enum class HostMemory { kBudget, kUnlimited };
  Result<Closest> closest(HostMemory host);
  Result<Closest> closest(std::size_t states, HostMemory host);
  Result<Closest> find_closest(std::size_t states, HostMemory host);
  static Result<Closest> closest_of(Variant& variant, HostMemory host, Bytes most);
  Status refusal_of(Bytes capacity);
  // The capacity for the next smaller plan.
  Result<Bytes> smaller_capacity(const MemoryPlan& plan);

  JobVariants variants_;
  std::vector<MemoryPlan> finalists_;  // of the sizes and homes that were searched last
  // Searches that were done.
  std::map<std::pair<std::size_t, HostMemory>, Closest> closest_;
};

}  // namespace neap::plan
