// The variants of a job that a plan search considers, and the drafts of each.
//
// Variant   A job with other types of optimizer states or other micro-batch sizes. Micro-batches
//           are of three kinds: training, inference and rollout. Each kind has levels: 0 is as
//           configured, and each further level is smaller. So has the number of the KV cache's pages.
// Draft     A variant has one for every combination of its models' homes (drafts.h).
// Scope     kConfigured allows only what memory.allow permits, and pages if rollout.max_total_tokens
//           is "auto". kWide also allows pages and smaller micro-batches of every kind. It lets the
//           plan choose offloading, updates and recomputation that the job fixes.
// Threads   one.
// Failure   kInvalidArgument for settings that contradict each other, or models that cannot be
//           read.
// Cost      models are read once. Variants and drafts are created on first use and kept. They share
//           the predictions of phases.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/search/drafts.h"
#include "plan/search/tunables.h"

namespace neap::plan {

struct Draft {
  MemoryPlan plan;
  bool exact = false;  ///< otherwise the plan may need more memory
};

/// How drafts run the models, in addition to homes.
struct DraftKind {
  bool offloads = false;  ///< layers, or their inputs, of some model are off the device
  bool graphs = false;    ///< decodes in CUDA graphs
  friend auto operator<=>(const DraftKind&, const DraftKind&) = default;
};

struct Variant {
  VariantChoice choice;
  spec::Job job;
  std::vector<spec::JobChange> changes;  ///< changes from the job to this variant
  std::unique_ptr<Drafts> drafts;
  std::map<DraftKind, std::vector<ModelOptions>> options;
  std::map<std::pair<bool, std::vector<spec::ModelHomes>>, Draft> made;  ///< with or without graphs
};

/// The homes of each model that drafts of a kind combine. Without offloads, there may be none.
[[nodiscard]] Result<const std::vector<ModelOptions>*> options_of(Variant& variant, DraftKind kind);
/// The draft with a combination of them; its address is stable. It is not exact: one round of each
/// loop gives its time, and most are discarded.
[[nodiscard]] Result<Draft*> draft_of(Variant& variant, DraftKind kind,
                                      const HomeCombination& homes);
/// Predicts inexact parts again.
[[nodiscard]] Status make_exact(Variant& variant, Draft& draft);

class JobVariants {
 public:
  enum class Scope { kConfigured, kWide };
  /// `target` must outlive the variants. Each draft keeps the choices in `fixed`.
  [[nodiscard]] static Result<JobVariants> make(const spec::Job& job, const Target& target,
                                                Scope scope, FixedChoices fixed = {});

  /// The job, with what kWide leaves to the plan.
  [[nodiscard]] const spec::Job& job() const { return job_; }
  /// Host memory for offloaded data; zero: unlimited.
  [[nodiscard]] Bytes host_limit() const {
    return job_.memory.host_budget.is_zero() ? target_->host_memory : job_.memory.host_budget;
  }
  /// The most that the link moves.
  [[nodiscard]] double bytes_per_second() const {
    return std::max({target_->link.to_host, target_->link.to_device, target_->link.both});
  }
  [[nodiscard]] bool has_fixed() const { return !fixed_.empty(); }
  /// Whether a plan may change the order of sums: on a GPU, if the job is not deterministic and all
  /// ranks have the same plan.
  [[nodiscard]] bool may_reorder_sums() const;
  /// Types of optimizer states, from 0: as configured, then bfloat16 wherever that is allowed.
  [[nodiscard]] std::size_t states() const { return states_.size(); }
  /// Why no plan decodes in graphs; empty: plans may (Drafts::no_graphs_reason).
  [[nodiscard]] Result<std::string_view> no_graphs_reason();
  /// The level of each kind of micro-batch, then of pages, and last that of prefill passes.
  using Levels = std::vector<int>;
  [[nodiscard]] const Levels& deepest() const { return deepest_; }
  /// Kinds before the prefill passes, which are only shortened to make room for graphs.
  [[nodiscard]] std::size_t searched() const { return deepest_.size() - 1; }
  /// How many of rollout.batch_size sequences are decoded together. kWide does not distinguish them.
  enum class Decoded { kAll, kFewer, kAny };
  /// Whether plans may decode fewer sequences together than the job says.
  [[nodiscard]] bool may_decode_fewer() const {
    return rollouts_ && deepest_[*rollouts_] > 0 && !fixed_.variant;
  }
  /// Whether reducing this kind decodes fewer sequences together than the job says.
  [[nodiscard]] bool decodes_fewer(std::size_t kind) const { return rollouts_ == kind; }
  /// Whether the results of `plan` differ more from the job's than those of `other`.
  [[nodiscard]] bool changes_more(const MemoryPlan& plan, const MemoryPlan& other) const;
  /// All searched kinds reduced by the same number of levels, as far as each goes; the largest sizes
  /// first.
  [[nodiscard]] std::vector<Levels> together(Decoded decoded) const;

  /// Null if the keys contradict each other, or if another variant is fixed. The address is stable.
  [[nodiscard]] Result<Variant*> at(std::size_t states, const Levels& levels);
  /// Adds to a plan's changes those that kWide made, except where the plan chose the configured
  /// value.
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

  // Changes that let the plan choose what the job fixes.
  struct Opened {
    std::vector<spec::JobChange> residency, update;
    std::vector<std::vector<spec::JobChange>> retention;  // per trained model
  };
  spec::Job configured_, job_;
  const Target* target_;
  std::vector<spec::ModelId> trained_;
  Opened opened_;
  JobModels models_;
  std::vector<Tunable> kinds_;
  std::optional<std::size_t> rollouts_;  // the kind that memory.allow's rollout_batch adds
  Levels deepest_;
  std::vector<std::vector<spec::JobChange>> states_;  // changes for each type of states
  std::unique_ptr<Predictions> predictions_ = std::make_unique<Predictions>();
  FixedChoices fixed_;
  std::map<std::pair<std::size_t, Levels>, Variant> variants_;
};

}  // namespace neap::plan
