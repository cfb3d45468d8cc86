#include "hook/moves.h"

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/log.h"

namespace neap::hook {
namespace {

using Move = std::function<Result<arena::MoveReport>(const OpenDevice&)>;

Result<arena::MoveReport> everywhere(const Move& move, const Move& undo) {
  Runtime& runtime = Runtime::get();
  NEAP_TRY(runtime.usable());
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<OpenDevice> devices = runtime.devices();
  std::vector<std::optional<Result<arena::MoveReport>>> outcomes(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = move(devices[i]); });
  }
  if (!devices.empty()) outcomes[0] = move(devices[0]);
  for (std::thread& thread : threads) thread.join();

  arena::MoveReport sum;
  Status failure;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!outcomes[i]->ok()) {
      if (failure.ok()) {
        failure = Status(outcomes[i]->status());
        if (devices.size() > 1) {
          failure =
              std::move(failure).with_context(format("moving on device {}", devices[i].ordinal));
        }
      }
      continue;
    }
    const arena::MoveReport& report = outcomes[i]->value();
    sum.bytes += report.bytes;
    sum.copied += report.copied;
    sum.regions += report.regions;
  }
  sum.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (failure.ok()) return sum;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!outcomes[i]->ok() || outcomes[i]->value().regions == 0) continue;
    if (auto undone = undo(devices[i]); !undone.ok()) {
      log::error(format("Device {} could not be moved back: {}", devices[i].ordinal,
                        undone.status().message()));
    }
  }
  return failure;
}

}  // namespace

Result<arena::MoveReport> pause_everywhere(std::span<const std::string> tags,
                                           const arena::PauseOptions& options) {
  return everywhere([&](const OpenDevice& on) { return on.arena->pause(tags, options); },
                    [&](const OpenDevice& on) { return on.arena->resume(tags); });
}

Result<arena::MoveReport> resume_everywhere(std::span<const std::string> tags,
                                            const arena::ResumeOptions& options) {
  arena::PauseOptions back;
  back.unchanged = true;  // what has just been restored is still on the host
  return everywhere([&](const OpenDevice& on) { return on.arena->resume(tags, options); },
                    [&](const OpenDevice& on) { return on.arena->pause(tags, back); });
}

Result<arena::MoveReport> exchange_everywhere(std::span<const std::string> out,
                                              std::span<const std::string> in,
                                              const arena::PauseOptions& options) {
  return everywhere([&](const OpenDevice& on) { return on.arena->exchange(out, in, options); },
                    [&](const OpenDevice& on) { return on.arena->exchange(in, out); });
}

}  // namespace neap::hook
