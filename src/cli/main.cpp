// `neap`: all commands. The commands of the trainer are in a separate library, because it needs libtorch.
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "cli/command.h"
#include "cli/program_commands.h"
#include "cli/trainer_library.h"

namespace {

/// True under LD_PRELOAD or CUPTI injection. Such a library may write its records in a destructor,
/// so these must run.
bool is_observed() {
  return std::getenv("LD_PRELOAD") != nullptr || std::getenv("CUDA_INJECTION64_PATH") != nullptr;
}

/// Raises the stack limit if `ulimit -s` is too low. Fails if the stack may be too small.
neap::Status provide_stack() {
  constexpr rlim_t kLeast = 1U << 20, kWanted = 8U << 20;
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast) return {};
  if (stack.rlim_max < kLeast)
    return {neap::ErrorCode::kUnsupported,
            neap::format("The stack's limit is {} KiB, and Neap needs {} KiB: raise it with "
                         "`ulimit -s {}`",
                         stack.rlim_max >> 10, kLeast >> 10, kWanted >> 10)};
  stack.rlim_cur = std::min(kWanted, stack.rlim_max);
  if (::setrlimit(RLIMIT_STACK, &stack) != 0) return {};
  // Threads get the limit from the start of the program.
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return {};
  ::pthread_attr_setstacksize(&attributes, stack.rlim_cur);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace neap::cli;
  if (const neap::Status stack = provide_stack(); !stack.ok()) return fail(stack);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then fails with a message
  if (argc < 2 || !needs_trainer(argv[1])) return run_command(make_program_commands(), argc, argv);
  const neap::Result<Trainer> trainer = load_trainer();
  if (!trainer.ok()) return fail(trainer.status());
  const int code = trainer->main(argc, argv);
  if (is_observed()) return code;
  // Skip static destructors: libtorch's would take 0.15 s, and the command has already released
  // what it held.
  std::fflush(nullptr);
  std::_Exit(code);
}
