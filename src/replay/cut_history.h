// A history whose first events are missing: what its replays can still be compared with.
//
// Model     A ring buffer that dropped its oldest events, or a recording that began in the middle of
//           the program. The window that was recorded is reproduced exactly, from the state at its
//           start. Other settings never had that state: they begin with the same live blocks, laid
//           out anew. Where the recorded settings, begun like that, reach the recorded peak, the
//           state does not matter and settings can be compared. Otherwise what came before the
//           window decides the peak, and a comparison would be wrong.
#pragma once

#include "replay/fidelity.h"

namespace neap::replay {

struct CutHistory {
  std::uint64_t blocks = 0;  ///< live before the first event
  Bytes live, reserved;      ///< before the first event
  Bytes recorded_peak;       ///< reserved, in the recorded window
  bool reproduced = true;    ///< the fidelity holds
  Bytes replayed_peak;       ///< the same, of the recorded settings from the blocks laid out anew
  /// Both peaks are within half a percent of each other.
  [[nodiscard]] bool comparable() const;
  /// For people: what the figures hold for, and why there is no advice.
  [[nodiscard]] std::string explanation() const;
};

/// Nothing for a whole history. `recorded` is the result of reproduce() or check_fidelity().
[[nodiscard]] Result<std::optional<CutHistory>> find_cut(const Workload& workload,
                                                         const Fidelity& recorded);

}  // namespace neap::replay
