// The memory plan: tags x phases with bytes, and the schedule of moves that keeps every phase under
// the capacity.
//
// The trainer allocates from it: each TagPlan becomes one arena tag, and the phase loop executes
// `moves`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena/arena.h"
#include "base/json.h"
#include "plan/job.h"

namespace neap::plan {

enum class Need { kNeed, kFree, kDrop };  ///< the cells of the table in docs/architecture.md

struct RegionPlan {
  std::string name;  ///< "block.3" of its tag
  Bytes bytes;       ///< requested; the arena rounds up to the granularity
};
struct TagPlan {
  std::string tag;  ///< "actor.weights", "rollout.kv", "critic.optimizer"
  std::vector<RegionPlan> regions;
  Bytes bytes;               ///< sum with rounding: what it takes on the device
  std::vector<Need> need;    ///< one a phase
  bool rebuildable = false;  ///< can be dropped instead of copied (a copy exists elsewhere)
};
struct PhasePlan {
  std::string name;           ///< "generate", "actor_logp", ...
  Bytes transient;            ///< predicted peak of the phase pool, as reserved from the device
  Bytes transient_allocated;  ///< the same as allocated
};
struct Move {
  enum class Kind { kPause, kResume } kind;
  std::string tag;
  arena::Policy policy = arena::Policy::kHost;
  Bytes bytes;
};
struct PhaseSchedule {
  std::vector<Move> moves;     ///< executed before the phase begins, in this order
  std::vector<bool> resident;  ///< one a tag, during the phase
  Bytes persistent;            ///< resident tags
  Bytes peak;                  ///< persistent + transient of the phase
};

struct MemoryPlan {
  Bytes capacity;  ///< zero: unlimited
  Bytes granularity;
  std::vector<PhasePlan> phases;  ///< in the order of one step
  std::vector<TagPlan> tags;
  std::vector<PhaseSchedule> schedule;  ///< one a phase; the steady cycle
  Bytes all_resident;                   ///< every tag at once + the largest transient
  Bytes peak;                           ///< largest phase peak of the schedule
  Bytes moved_per_step;                 ///< bytes over the link, both directions
  Bytes host_bytes;                     ///< most that backups hold at once

  [[nodiscard]] Json to_json() const;  ///< schema 1; docs/plan-json.md
  [[nodiscard]] std::string to_text() const;
};

/// The whole road from configuration to plan. kDoesNotFit when no schedule fits: the message has
/// the least capacity that would, and the knobs that lower it.
[[nodiscard]] Result<MemoryPlan> make_plan(const Job& job, Bytes capacity, Bytes granularity);

/// Fills `schedule` and the sums from tags, phases and capacity: the cheapest moves that fit.
[[nodiscard]] Status solve_residency(MemoryPlan& plan, const std::string& mode);

}  // namespace neap::plan
