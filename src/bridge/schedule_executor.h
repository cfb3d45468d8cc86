// Executes the plan's schedule on the arena: which tags are on the device in which phase.
//
// Moves come from plan::moves_to, which also wrote the schedule. Inside the cycle they are the
// plan's list. Outside it (the first phase, validation, after hold) they lead back into the cycle.
// They run in order. Pauses that copy and the resumes after them form one exchange, which uses both
// directions of the link. Moves that overlap with the phase start after them. finish_copies()
// completes them at the phase's end, or before the next move.
//
// Threads   one at a time.
// Failure   neap::Error. A failed move has changed nothing, or the leaving tag is paused with its
//           contents (arena.h); resident() tells.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "plan/residency/tag_moves.h"
#include "plan/results/memory_plan.h"

namespace neap::bridge {

/// An executed move.
struct MoveRecord {
  plan::Move::Kind kind = plan::Move::Kind::kPause;
  spec::TagId tag{};
  Bytes planned;               ///< bytes over the link by the plan
  Bytes copied;                ///< bytes over the link as counted by the arena
  double copy_seconds = 0;     ///< time of its copies; between phases equal to visible_seconds
  double visible_seconds = 0;  ///< exposed time; a call's time is divided by bytes
  bool behind = false;         ///< it overlapped with the phase
};

/// The moves before a phase, without those that overlap with it.
struct Transition {
  std::vector<MoveRecord> moves;  ///< in execution order
  double seconds = 0;
  bool scheduled = false;  ///< the moves are the plan's
  [[nodiscard]] Bytes copied() const;
};

class ScheduleExecutor {
 public:
  /// Reserves the plan's regions. `arena` and `plan` must outlive it. `computes` is the compute
  /// stream. `before_moves` is called before any tag moves.
  ScheduleExecutor(arena::Arena& arena, const plan::MemoryPlan& plan, device::StreamId computes,
                   std::function<void()> before_moves);

  /// One flag per tag, in the plan's order.
  using Set = std::vector<bool>;

  /// Brings the tags from any state into the one that the schedule requires for `phase` (index).
  Transition enter(std::size_t phase);
  /// Waits for moves that overlap with the phase, and adds them to `done` with their exposed time
  /// since the last call. Returns the first failure; that tag is as before the move.
  [[nodiscard]] Status finish_copies(std::vector<MoveRecord>& done);
  /// Makes exactly the tags in `wanted` resident.
  Transition move_to(const Set& wanted);
  /// Makes `tags` resident in addition to the current ones. If that exceeds the plan's peak, only
  /// tags that never leave the device in a step stay. If that still exceeds it, `tags` are resident
  /// alone. The caller may write them.
  Transition bring(const std::vector<spec::TagId>& tags);
  /// Makes `before` resident again. Tags that arrived since and never leave the device in a step
  /// stay, because no host memory is planned for them.
  Transition put_back(const Set& before);

  [[nodiscard]] Set resident() const;
  /// Bytes of the resident tags.
  [[nodiscard]] Bytes persistent() const;
  /// Throws Error with the existing names if the tag does not exist.
  [[nodiscard]] std::size_t tag_index(spec::TagId tag) const;
  [[nodiscard]] std::size_t phase_index(spec::PhaseId phase) const;
  /// The location of a part of a tag; kNotFound as an Error.
  struct Place {
    device::Address address = 0;
    Bytes bytes;
    arena::RegionId region = arena::RegionId::kNone;
    Bytes offset;  ///< within the region
  };
  [[nodiscard]] Place place(spec::TagId tag, std::string_view part) const;

 private:
  [[nodiscard]] bool fits(const Set& tags) const;
  /// Whether some phase of a step runs without the tag.
  [[nodiscard]] bool leaves(std::size_t tag) const;
  [[nodiscard]] bool is_scheduled(std::size_t phase, const std::vector<plan::Move>& moves) const;
  Transition execute(const std::vector<plan::Move>& moves);
  void begin(const plan::Move& move);
  [[nodiscard]] Status finish_begun();
  void resync();
  void create_regions(const plan::TagPlan& tag);

  arena::Arena& arena_;
  const plan::MemoryPlan& plan_;
  device::StreamId computes_;
  std::function<void()> before_moves_;
  std::vector<plan::TagState> states_;
  std::optional<std::size_t> last_phase_;                        // the phase that was entered last
  std::map<std::pair<spec::TagId, std::string>, Place> places_;  // (tag, part)
  struct Begun {
    plan::Move move;
    std::unique_ptr<arena::Ticket> ticket;
  };
  std::vector<Begun> begun_;
  std::vector<MoveRecord> finished_;  // not yet returned by finish_copies()
};

}  // namespace neap::bridge
