#include "rlhf/trainer/processor_share.h"

#include "base/format.h"

namespace neap::rlhf {
namespace {

// The fraction of one core. Even a single thread gets more on a busy machine.
constexpr double kLeastShare = 0.3;
constexpr double kSeconds = 30;  // minimum duration

}  // namespace

std::optional<std::string> ProcessorShare::note(double cpu_seconds, double seconds) {
  if (threads_ < 2 || warned_) return std::nullopt;
  if (cpu_seconds >= kLeastShare * seconds) {
    cpu_seconds_ = seconds_ = 0;
    return std::nullopt;
  }
  cpu_seconds_ += cpu_seconds;
  seconds_ += seconds;
  if (seconds_ < kSeconds) return std::nullopt;
  warned_ = true;
  return format(
      "The steps of the last {:.0f} s had {:.0f} % of one core: other programs use the cores, and "
      "each kernel waits for all {} threads. The same command with OMP_NUM_THREADS=1 waits less "
      "(the last bits of results depend on the number of threads)",
      seconds_, 100 * cpu_seconds_ / seconds_, threads_);
}

}  // namespace neap::rlhf
