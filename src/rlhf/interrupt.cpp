#include "rlhf/interrupt.h"

#include <unistd.h>

#include <string_view>

namespace neap::rlhf {
namespace {

volatile std::sig_atomic_t g_requested = 0;

void on_signal(int) {
  g_requested = 1;
  constexpr std::string_view kLine =
      "\nStopping after this step, with a checkpoint. Once more to stop at once, without.\n";
  // Nothing can be done about a closed stderr here.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
}

}  // namespace

InterruptScope::InterruptScope() {
  g_requested = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  ::sigaction(SIGINT, &action, &interrupt_);
  ::sigaction(SIGTERM, &action, &terminate_);
}

InterruptScope::~InterruptScope() {
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
}

bool InterruptScope::requested() {
  return g_requested != 0;
}

}  // namespace neap::rlhf
