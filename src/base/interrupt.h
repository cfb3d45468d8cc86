// A signal that asks the process to end, taken as a request to stop at the next good place.
//
// The first SIGINT or SIGTERM is remembered. One more from the same sender, at least a second later, ends the process at
// once. The terminal's keys are one sender, each process another, because launchers, systemd and Slurm pass on or repeat what
// has reached all processes already, some of them seconds later. SIGHUP, which the end of a terminal's session sends, is
// remembered only, and left alone where the process was started to ignore it (nohup).
//
// Threads   one scope at a time; requested() from any.
#pragma once

#include <csignal>
#include <cstdint>

namespace neap {

enum class InterruptSignals : std::uint8_t {
  kAll,
  kInterrupt  ///< SIGINT; the others and closed pipes end the process as ever
};

/// Catches the signals while it lives. A closed pipe of stdout or stderr does not end the process meanwhile: a reader that
/// the same Ctrl-C has ended must not cost what the process is about to save.
class InterruptScope {
 public:
  /// `notice` is written to stderr at the first signal; it stays valid.
  explicit InterruptScope(const char* notice, InterruptSignals signals = InterruptSignals::kAll);
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();
  /// Of the last scope.
  [[nodiscard]] static bool requested();

 private:
  InterruptSignals signals_;
  struct sigaction interrupt_ {
  }, terminate_{}, hang_up_{}, pipe_{};
};

}  // namespace neap
