// Executes the plan's schedule on the arena: which tags are on the device in which phase.
//
// Moves come from plan::moves_to, which wrote the schedule: inside the cycle they are the plan's list,
// outside it (the first phase, validation, after hold) the way back into it. They are executed in their
// order; pauses that copy and the resumes behind them are one exchange, which uses both directions of
// the link. Moves that run behind the phase begin after them and are finished by finish_copies, at the
// phase's end or before whatever moves next.
//
// Threads   one at a time.
// Failure   neap::Error. A move that failed has changed nothing, or what was leaving is paused with its
//           contents (arena.h); resident() says which.
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
#include "plan/memory_plan.h"
#include "plan/tag_moves.h"

namespace neap::bridge {

/// A move as it was executed.
struct MoveRecord {
  plan::Move::Kind kind = plan::Move::Kind::kPause;
  spec::TagId tag{};
  Bytes planned;               ///< over the link, by the plan
  Bytes copied;                ///< over the link, as the arena counted
  double copy_seconds = 0;     ///< of its copies; between phases the same as visible_seconds
  double visible_seconds = 0;  ///< waited for; of one call's seconds its share by bytes
  bool behind = false;         ///< it ran while the phase computed
};

/// What was done before a phase, without what runs behind it.
struct Transition {
  std::vector<MoveRecord> moves;  ///< in the order of execution
  double seconds = 0;
  bool scheduled = false;  ///< the moves are the plan's
  [[nodiscard]] Bytes copied() const;
};

class ScheduleExecutor {
 public:
  /// Reserves the plan's regions. Both outlive it.
  /// `computes`: the stream of what phases compute. `before_moves` is called whenever a tag is about to move.
  ScheduleExecutor(arena::Arena& arena, const plan::MemoryPlan& plan, device::StreamId computes,
                   std::function<void()> before_moves);

  /// One flag a tag, in the plan's order.
  using Set = std::vector<bool>;

  /// Brings the tags into the state that the schedule wants for `phase` (index), whatever the state is now.
  Transition enter(std::size_t phase);
  /// Waits for what runs behind the phase and adds it to `done`, with what was waited for since the last call. The first
  /// failure; its tag is as before the move.
  [[nodiscard]] Status finish_copies(std::vector<MoveRecord>& done);
  /// Makes exactly `wanted` resident.
  Transition move_to(const Set& wanted);
  /// `tags` in addition to what is there; where that is over the plan's peak, to what never leaves the device in a step;
  /// where that is, alone. The caller may write them.
  Transition bring(const std::vector<spec::TagId>& tags);
  /// Makes `before` resident again, and keeps what has come since and never leaves the device in a step: no host memory
  /// is planned for it.
  Transition put_back(const Set& before);

  [[nodiscard]] Set resident() const;
  /// Bytes of the resident tags.
  [[nodiscard]] Bytes persistent() const;
  /// Throw Error that names those there are.
  [[nodiscard]] std::size_t tag_index(spec::TagId tag) const;
  [[nodiscard]] std::size_t phase_index(spec::PhaseId phase) const;
  /// Where a part of a tag lies; kNotFound as an Error.
  struct Place {
    device::Address address = 0;
    Bytes bytes;
    arena::RegionId region = arena::RegionId::kNone;
    Bytes offset;  ///< within the region
  };
  [[nodiscard]] Place place(spec::TagId tag, std::string_view part) const;

 private:
  [[nodiscard]] bool fits(const Set& tags) const;
  /// Some phase of a step has it not.
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
  std::optional<std::size_t> last_phase_;                        // that was entered
  std::map<std::pair<spec::TagId, std::string>, Place> places_;  // (tag, part)
  struct Begun {
    plan::Move move;
    std::unique_ptr<arena::Ticket> ticket;
  };
  std::vector<Begun> begun_;
  std::vector<MoveRecord> finished_;  // not asked for yet
};

}  // namespace neap::bridge
