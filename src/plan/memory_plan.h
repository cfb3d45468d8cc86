// The memory plan: tags x phases with bytes, and the schedule of moves that keeps every phase under
// the capacity.
//
// The trainer allocates from it: each TagPlan becomes one arena tag, and the phase loop executes
// `moves`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "base/json.h"
#include "spec/checkpointing.h"
#include "spec/job.h"
#include "step/counting_ops.h"

namespace neap::plan {

enum class Need { kNeed, kOptional, kDrop };  ///< the cells of the table in docs/architecture.md

/// What a tag's bytes are worth in the phases that do not need them.
enum class Contents {
  kLive,    ///< must come back as they were: weights, optimizer states
  kFrozen,  ///< never change after loading: one host copy serves for ever
  kScratch  ///< worthless: undefined when the next phase that needs them begins (gradients, KV cache)
};

/// A named stretch of a region: one flat unit of a model.
struct PartPlan {
  std::string name;  ///< "embed", "block.3", "head"; "kv" for the KV cache
  Bytes offset;      ///< from the region's start; a multiple of kPartAlignment
  Bytes bytes;
};
constexpr Bytes kPartAlignment = 512_B;
/// What the arena creates. Small units share a region, so that rounding up to the granularity costs
/// little.
struct RegionPlan {
  std::string name;  ///< of its first and last part: "embed", "block.0..block.7"
  Bytes bytes;       ///< requested; the arena rounds up to the granularity
  std::vector<PartPlan> parts;
};
/// An optimizer part holds what spec::OptimizerSpec::state lays out for its unit.
struct TagPlan {
  std::string tag;  ///< "actor.weights", "rollout.kv", "critic.optimizer"
  std::vector<RegionPlan> regions;
  Bytes bytes;              ///< sum with rounding: what it takes on the device
  std::vector<Need> need;   ///< one a phase
  std::vector<bool> write;  ///< one a phase: the phase changes the contents
  Contents contents = Contents::kLive;
};
struct PhasePlan {
  std::string name;           ///< "generate", "actor_logp", ...
  Bytes transient;            ///< predicted peak of the phase pool, as reserved from the device
  Bytes transient_allocated;  ///< the same as allocated
  double seconds = 0;         ///< of its operations in one step, by the device's rates
};
struct Move {
  enum class Kind { kPause, kResume } kind;
  std::string tag;
  arena::Policy policy = arena::Policy::kHost;  ///< of a pause
  Bytes bytes;
  /// Pause: the host copy of an earlier pause is still right. Resume: nothing is restored.
  bool copies = true;
};
struct PhaseSchedule {
  std::vector<Move> moves;     ///< executed before the phase begins, in this order
  std::vector<bool> resident;  ///< one a tag, during the phase
  Bytes persistent;            ///< resident tags
  Bytes peak;                  ///< persistent + transient of the phase
};

/// What the blocks of a trained model keep for their backward.
struct ActivationPlan {
  std::string model;                                        ///< "actor", "critic", "reward"
  spec::CheckpointMode mode = spec::CheckpointMode::kNone;  ///< as configured
  spec::Checkpointing checkpointing;
};

/// The device that a plan is made for.
struct Target {
  bool cuda = false;  ///< else the host device
  Bytes capacity;     ///< zero: unlimited
  Bytes granularity = 2_MiB;
  std::int64_t threads = 2;            ///< of libtorch's CPU kernels; each takes scratch memory
  std::int64_t multiprocessors = 132;  ///< of the GPU; H100's and H200's where there is none to ask
  step::KernelRates rates{};           ///< zeros: default_rates()
};

struct MemoryPlan {
  std::string task;
  Bytes capacity;  ///< zero: unlimited
  Bytes granularity;
  Bytes host_budget;              ///< zero: unlimited
  std::vector<PhasePlan> phases;  ///< in the order of one step
  std::vector<TagPlan> tags;
  std::vector<ActivationPlan> activations;  ///< one a trained model
  std::vector<PhaseSchedule> schedule;      ///< one a phase; the steady cycle
  Bytes all_resident;                       ///< every tag at once + the largest transient
  Bytes peak;                               ///< largest phase peak of the schedule
  Bytes moved_per_step;                     ///< bytes over the link, both directions
  Bytes host_bytes;  ///< host copies: one of each tag that ever leaves with its contents

  [[nodiscard]] bool fits() const { return capacity.is_zero() || peak <= capacity; }
  /// Of a trained model by its name.
  [[nodiscard]] const spec::Checkpointing& checkpointing(std::string_view model) const;
  [[nodiscard]] Json to_json() const;  ///< schema 1; docs/plan-json.md
  [[nodiscard]] std::string to_text() const;
};

/// Tags, phases and transients of a job, without a schedule.
[[nodiscard]] Result<MemoryPlan> draft_plan(const spec::Job& job, const Target& target);
/// The whole road from configuration to plan. kDoesNotFit when no schedule fits: the message has
/// the least capacity that would, and the suggestions that lower it. With residency "all" the plan may
/// be over the capacity (fits() tells): the run then meets the device's own limit.
[[nodiscard]] Result<MemoryPlan> make_plan(const spec::Job& job, const Target& target);

/// Fills `schedule` and the sums from tags, phases and capacity: the cheapest moves that fit.
[[nodiscard]] Status solve_residency(MemoryPlan& plan, const std::string& mode);

}  // namespace neap::plan
