// Executes the plan's schedule on the arena: which tags are on the device in which phase.
//
// Threads   one at a time.   Failure   exceptions; a failed move leaves the arena as it was (arena.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "plan/memory_plan.h"

namespace neap::bridge {

class ScheduleExecutor {
 public:
  ScheduleExecutor(arena::Arena& arena, const plan::MemoryPlan& plan);

  struct Moved {
    Bytes copied;  ///< over the link, both directions
    double seconds = 0;
  };
  /// One flag a tag, in the plan's order.
  using Set = std::vector<bool>;

  /// Brings the tags into the state that the schedule wants for `phase` (index), whatever the state is now.
  Moved enter(std::size_t phase);
  /// Makes exactly `wanted` resident.
  Moved move_to(const Set& wanted);
  /// `tags` in addition to what is there, or alone where both do not fit under the capacity. The caller may write them.
  Moved bring(const std::vector<std::string>& tags);

  [[nodiscard]] const Set& resident() const { return resident_; }
  /// Bytes of the resident tags.
  [[nodiscard]] Bytes persistent() const;
  [[nodiscard]] std::size_t tag_index(
      std::string_view tag) const;  ///< throws Error naming the tags there are
  [[nodiscard]] std::size_t phase_index(std::string_view phase) const;

 private:
  arena::Arena& arena_;
  const plan::MemoryPlan& plan_;
  Set resident_;
  Set dirty_;  // may differ from the host copy, or has none
};

}  // namespace neap::bridge
