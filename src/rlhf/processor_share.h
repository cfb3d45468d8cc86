// Whether other programs take the cores that a run on the host device computes with: its threads meet
// after each kernel, so a step waits until all of them have had a core.
//
// Threads   one owner at a time.   Cost   none to speak of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace neap::rlhf {

class ProcessorShare {
 public:
  explicit ProcessorShare(std::int64_t threads) : threads_(threads) {}

  /// A step took `cpu_seconds` of the process and `seconds` by the clock, without reward functions.
  /// Returns a warning with what to change, once, when the run has mostly waited for half a minute.
  [[nodiscard]] std::optional<std::string> note(double cpu_seconds, double seconds);

 private:
  std::int64_t threads_;
  double cpu_seconds_ = 0, seconds_ = 0;  // of the steps in a row that mostly waited
  bool warned_ = false;
};

}  // namespace neap::rlhf
