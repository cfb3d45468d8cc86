// Detects that other programs use the cores of a CPU run. Its threads synchronise after each
// kernel, so a step waits until every thread has had a core.
//
// Threads   one owner at a time.
// Cost      negligible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace neap::rlhf {

class ProcessorShare {
 public:
  explicit ProcessorShare(std::int64_t threads) : threads_(threads) {}

  /// Records a step: CPU seconds of the process and wall-clock seconds, without reward functions.
  /// Returns a warning once, after half a minute of mostly waiting.
  [[nodiscard]] std::optional<std::string> note(double cpu_seconds, double seconds);

 private:
  std::int64_t threads_;
  double cpu_seconds_ = 0, seconds_ = 0;  // of consecutive steps that mostly waited
  bool warned_ = false;
};

}  // namespace neap::rlhf
