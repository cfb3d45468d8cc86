// The variants of a job among which a plan is searched, and the drafts of each.
//
// Variant A job that differs from the configured one in types of optimizer states and in sizes of
//         micro-batches. Kinds of micro-batches are training, inference and rollout; each has levels:
//         0 is as configured, each further one is smaller.
// Draft   A variant has one for every way to run its models (drafts.h).
// Scope   kConfigured: only what memory.allow permits. kWide: also smaller micro-batches of every kind,
//         and what the job settles of residency, updates and recomputation is left to the plan.
//
// Threads one.
// Failure kInvalidArgument for settings that contradict each other or models that cannot be read.
// Cost    models are read once. Variants and drafts are made when they are first asked for and kept;
//         they share what was predicted of phases.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/drafts.h"
#include "plan/tunables.h"

namespace neap::plan {

struct Draft {
  MemoryPlan plan;
  double least_seconds = 0;  ///< no plan of the draft takes less
  bool exact = true;         ///< else the plan may need more
};

struct Variant {
  VariantChoice choice;
  spec::Job job;
  std::vector<spec::JobChange> changes;  ///< that make it from the job
  std::unique_ptr<Drafts> drafts;
  std::map<WeightPlacement, std::vector<Draft>> made;
};

/// The drafts of a variant. They stay where they are. Drafts with resident weights are not exact: one round tells their
/// seconds, and most are left when their least seconds or bytes are known.
[[nodiscard]] Result<std::vector<Draft>*> drafts_of(Variant& variant, WeightPlacement weights);
/// Counts again what is not exact.
[[nodiscard]] Status make_exact(Variant& variant, Draft& draft);

class JobVariants {
 public:
  enum class Scope { kConfigured, kWide };
  /// `target` outlives the variants. `fixed`: choices that every draft takes.
  [[nodiscard]] static Result<JobVariants> make(const spec::Job& job, const Target& target,
                                                Scope scope, FixedChoices fixed = {});

  /// With what kWide leaves to the plan.
  [[nodiscard]] const spec::Job& job() const { return job_; }
  [[nodiscard]] bool has_fixed() const { return !fixed_.empty(); }
  /// Types of optimizer states, from 0: as configured, then bfloat16 wherever that is allowed.
  [[nodiscard]] std::size_t states() const { return states_.size(); }
  /// How far each kind of micro-batches is made smaller.
  using Levels = std::vector<int>;
  [[nodiscard]] const Levels& deepest() const { return deepest_; }
  /// As far as each kind goes down, all kinds by the same number of levels; the largest sizes first.
  [[nodiscard]] std::vector<Levels> together() const;

  /// Null where the keys contradict each other, or another one is fixed. It stays where it is.
  [[nodiscard]] Result<Variant*> at(std::size_t states, const Levels& levels);
  /// Completes the changes from the configured job in a variant's plan: adds those that left settings to the
  /// plan, but where it chose what is configured.
  void add_opened(MemoryPlan& plan) const;

 private:
  JobVariants(const spec::Job& job, const Target& target, FixedChoices fixed)
      : configured_(job),
        job_(job),
        target_(&target),
        trained_(spec::describe(job).trained()),
        fixed_(std::move(fixed)) {}
  void open_settings();
  void add_levels(std::vector<Tunable> kinds);
  void add_states();
  [[nodiscard]] spec::CheckpointMode configured_mode(spec::ModelId trained) const;

  // Changes that leave to the plan what the job settles.
  struct Opened {
    std::vector<spec::JobChange> residency, update;
    std::vector<std::vector<spec::JobChange>> retention;  // one for each trained model
  };
  spec::Job configured_, job_;
  const Target* target_;
  std::vector<spec::ModelId> trained_;
  Opened opened_;
  JobModels models_;
  std::vector<Tunable> kinds_;
  Levels deepest_;
  std::vector<std::vector<spec::JobChange>> states_;  // changes of each
  std::unique_ptr<Predictions> predictions_ = std::make_unique<Predictions>();
  FixedChoices fixed_;
  std::map<std::pair<std::size_t, Levels>, Variant> variants_;
};

}  // namespace neap::plan
