// Decides how replays of a history without its first events can be compared.
//
// Model     A ring buffer dropped its oldest events, or the recording began in the middle of the
//           program. The recorded window is reproduced exactly, from the state at its start. Other
//           settings never had that state, so they begin with the same live blocks, placed anew.
//           The recorded settings are also replayed from such a start. If they reach the recorded
//           peak, the start state does not matter and settings can be compared. Otherwise events
//           before the window decide the peak, and a comparison would be wrong.
#pragma once

#include "replay/fidelity.h"

namespace neap::replay {

struct CutHistory {
  std::uint64_t blocks = 0;  ///< number live before the first event
  Bytes live, reserved;      ///< before the first event
  Bytes recorded_peak;       ///< reserved within the recorded window
  bool reproduced = true;    ///< the replay matches the recording
  Bytes replayed_peak;       ///< replayed with the recorded settings from the blocks placed anew
  /// Whether both peaks differ by at most half a percent.
  [[nodiscard]] bool comparable() const;
  /// Explains for people what the figures mean, and why advice is missing.
  [[nodiscard]] std::string explanation() const;
};

/// Nothing for a complete history. `recorded` is the result of reproduce() or check_fidelity().
[[nodiscard]] Result<std::optional<CutHistory>> find_cut(const Workload& workload,
                                                         const Fidelity& recorded);

}  // namespace neap::replay
