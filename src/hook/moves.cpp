#include "hook/moves.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/parallel_for.h"

namespace neap::hook {
namespace {

using Tags = std::span<const std::string>;
using Move = std::function<Result<arena::MoveReport>(const OpenDevice&)>;

/// The tags among `tags` (none: all) with a region in `state` on the device. A move affects only
/// these, so undoing it must not touch others.
std::vector<std::string> tags_in(const OpenDevice& on, Tags tags, arena::State state) {
  std::set<std::string> found;
  for (const arena::RegionInfo& region : on.arena->regions()) {
    if (region.state != state) continue;
    if (tags.empty() || std::find(tags.begin(), tags.end(), region.tag) != tags.end()) {
      found.insert(region.tag);
    }
  }
  return {found.begin(), found.end()};
}

/// Runs `move` on every open device at the same time. If one fails, the moves of the other devices
/// are undone. `undo_of` is called for each device before anything moves, and returns its undo.
Result<arena::MoveReport> everywhere(const Move& move,
                                     const std::function<Move(const OpenDevice&)>& undo_of) {
  Runtime& runtime = Runtime::get();
  NEAP_TRY(runtime.usable());
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<OpenDevice> devices = runtime.devices();
  std::vector<Move> undo(devices.size());
  if (devices.size() > 1) std::transform(devices.begin(), devices.end(), undo.begin(), undo_of);
  std::vector<std::optional<Result<arena::MoveReport>>> outcomes(devices.size());
  parallel_for(devices.size(), devices.size(),
               [&](std::size_t i) { outcomes[i] = move(devices[i]); });

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
    if (auto undone = undo[i](devices[i]); !undone.ok()) {
      log::error(format("Device {} could not be moved back: {}", devices[i].ordinal,
                        undone.status().message()));
    }
  }
  return failure;
}

Move to_resume(std::vector<std::string> tags) {
  return [tags = std::move(tags)](const OpenDevice& on) -> Result<arena::MoveReport> {
    if (tags.empty()) return arena::MoveReport{};
    return on.arena->resume(tags);
  };
}
Move to_pause(std::vector<std::string> tags) {
  return [tags = std::move(tags)](const OpenDevice& on) -> Result<arena::MoveReport> {
    if (tags.empty()) return arena::MoveReport{};
    arena::PauseOptions back;
    back.unchanged = true;  // the restored contents are still on the host
    return on.arena->pause(tags, back);
  };
}

}  // namespace

Result<arena::MoveReport> pause_everywhere(Tags tags, const arena::PauseOptions& options) {
  return everywhere(
      [&](const OpenDevice& on) { return on.arena->pause(tags, options); },
      [&](const OpenDevice& on) { return to_resume(tags_in(on, tags, arena::State::kResident)); });
}

Result<arena::MoveReport> resume_everywhere(Tags tags, const arena::ResumeOptions& options) {
  return everywhere(
      [&](const OpenDevice& on) { return on.arena->resume(tags, options); },
      [&](const OpenDevice& on) { return to_pause(tags_in(on, tags, arena::State::kPaused)); });
}

Result<arena::MoveReport> exchange_everywhere(Tags out, Tags in,
                                              const arena::PauseOptions& options) {
  return everywhere([&](const OpenDevice& on) { return on.arena->exchange(out, in, options); },
                    [&](const OpenDevice& on) -> Move {
                      auto left = tags_in(on, out, arena::State::kResident);
                      auto came = tags_in(on, in, arena::State::kPaused);
                      if (left.empty()) return to_pause(std::move(came));
                      if (came.empty()) return to_resume(std::move(left));
                      return
                          [left = std::move(left), came = std::move(came)](const OpenDevice& back) {
                            return back.arena->exchange(came, left);
                          };
                    });
}

}  // namespace neap::hook
