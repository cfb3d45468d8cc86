// The fastest plan of a job under a capacity: one search over residency, recomputation, the division
// and streaming of updates, types of optimizer states and sizes of micro-batches.
//
// Search  Variants of the job differ in optimizer states and micro-batches. Of each variant every way
//         to divide the updates is tried, with the best retentions (checkpoint_search.h) and moves
//         (residency_search.h). One whose least seconds, all operations without recomputation or
//         optional moves, are no better than the best plan is left out. Sizes of micro-batches are
//         chosen one kind after another, twice, each by halving or doubling as long as that helps.
//         A variant that changes results has to be 5 % faster than those that do not.
// Cost    seconds by the device's rates. A search of a 7B PPO job takes 10 to 300 ms; later ones
//         with other capacities reuse what was predicted.
//
// Threads one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/drafts.h"
#include "plan/tunables.h"

namespace neap::plan {

class PlanSearch {
 public:
  enum class Scope {
    kConfigured,  ///< the job as it is, and what memory.allow permits
    kWide,        ///< also what --fit may change: micro-batches, retentions, update, residency
  };
  [[nodiscard]] static Result<PlanSearch> make(const spec::Job& job, const Target& target,
                                               Scope scope);

  /// Zero: an unlimited capacity. kDoesNotFit with the least capacity when nothing fits. The plan's
  /// `changes` are those of the job that it is for.
  [[nodiscard]] Result<MemoryPlan> fastest(Bytes capacity);
  /// The least capacity for which fastest() finds a plan.
  [[nodiscard]] Result<Bytes> least_capacity();

  /// The fastest plan that takes at least 10 % less memory, else the one of the least capacity;
  /// nullopt where `plan` takes no more than that.
  [[nodiscard]] Result<std::optional<MemoryPlan>> smaller(const MemoryPlan& plan);
  /// The smallest plan that takes at least 5 % less time, to 4 % of its memory; nullopt where none
  /// does, whatever its memory.
  [[nodiscard]] Result<std::optional<MemoryPlan>> faster(const MemoryPlan& plan);

 private:
  using Levels = std::vector<int>;  // of micro-batches_, one each
  struct Variant {
    spec::Job job;
    std::vector<spec::JobChange> changes;
    std::unique_ptr<Drafts> drafts;
    struct Draft {
      MemoryPlan plan;
      double least_seconds = 0;
    };
    // One for each of Drafts::modes(): of resident weights, and of streamed ones once they are asked for.
    std::optional<std::vector<Draft>> resident, streamed;
  };
  // Optimizer states of all trained models.
  struct States {
    std::vector<spec::JobChange> changes;
    bool exact() const { return changes.empty(); }
  };
  PlanSearch(const spec::Job& job, const Target& target)
      : configured_(job), job_(job), target_(target), trained_(spec::describe(job).trained()) {}
  void open_settings();
  void add_states();
  Result<Variant*> variant(std::size_t states, const Levels& levels);
  static Result<const std::vector<Variant::Draft>*> drafts_of(Variant& variant, bool streamed);
  Result<std::optional<MemoryPlan>> fastest_within(Bytes capacity, double limit);
  Result<std::optional<MemoryPlan>> fastest_of(std::size_t states, Bytes capacity, double limit);
  /// With streamed weights, or with resident ones.
  Result<std::optional<MemoryPlan>> fastest_of(std::size_t states, Bytes capacity, double limit,
                                               bool streamed);
  Result<std::optional<MemoryPlan>> fastest_of(Variant& variant, Bytes capacity, double limit,
                                               bool streamed);
  void add_opened(MemoryPlan& plan) const;
  [[nodiscard]] spec::CheckpointMode configured_mode(spec::ModelId trained) const;
  Status refusal_of(Bytes capacity);
  /// Of the next smaller plan.
  Result<Bytes> smaller_capacity(const MemoryPlan& plan);
  struct Closest {
    const MemoryPlan* draft = nullptr;
    Bytes least;
  };
  template <class Of>
  Result<std::optional<Closest>> closest(const Of& of);
  template <class Of>
  Result<std::optional<Closest>> closest_of(std::size_t states, bool streamed, const Of& of);
  Result<std::optional<Closest>> closest();
  /// The least capacity with resident weights.
  Result<Bytes> resident_capacity(std::size_t states);
  [[nodiscard]] std::vector<Levels> together() const;

  // Settings of the job that bind the plan and are left to it.
  struct Opened {
    std::vector<spec::JobChange> residency, update;
    std::vector<std::vector<spec::JobChange>> retention;  // of each trained model
  };
  spec::Job configured_;
  spec::Job job_;  // with what is opened
  const Target& target_;
  std::vector<spec::ModelId> trained_;
  Opened opened_;
  JobModels models_;
  std::vector<Tunable> micro_batches_;
  Levels deepest_;
  std::vector<States> states_;
  std::unique_ptr<Predictions> predictions_ = std::make_unique<Predictions>();
  std::map<std::pair<std::size_t, Levels>, Variant> variants_;
  std::optional<Bytes> least_;  ///< least_capacity(), once it is known
  std::map<std::size_t, Bytes> least_resident_;
};

}  // namespace neap::plan
