// Turns a signal that asks the process to end into a request to stop at the next safe point.
//
// The first SIGINT or SIGTERM is recorded. Another one from the same sender, at least a second
// later, ends the process at once. The terminal's keys count as one sender, and each process as
// another. Launchers, systemd and Slurm pass on or repeat a signal that all processes already have,
// sometimes seconds later.
//
// SIGHUP is sent when a terminal's session ends. It is recorded, and never ends the process at
// once. It is ignored if the process was started to ignore it (nohup).
//
// Threads   one scope at a time; any thread may call requested().
#pragma once

#include <csignal>
#include <cstdint>

namespace neap {

enum class InterruptSignals : std::uint8_t {
  kAll,
  kInterrupt  ///< SIGINT only; other signals and closed pipes end the process as usual
};

/// Catches the signals during its lifetime. A closed pipe of stdout or stderr does not end the
/// process meanwhile. The same Ctrl-C may have ended the reader, and the process must still save
/// its work.
class InterruptScope {
 public:
  /// `notice` is written to stderr at the first signal. The caller keeps it valid.
  explicit InterruptScope(const char* notice, InterruptSignals signals = InterruptSignals::kAll);
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();
  /// Whether a signal was recorded in the last scope.
  [[nodiscard]] static bool requested();

 private:
  InterruptSignals signals_;
  struct sigaction interrupt_ {
  }, terminate_{}, hang_up_{}, pipe_{};
};

}  // namespace neap
