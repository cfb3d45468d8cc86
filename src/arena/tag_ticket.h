// What tickets of tags share: from begin to finish the tags are moving, and nothing else moves them.
#pragma once

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>

#include "arena/operations.h"
#include "base/format.h"
#include "base/log.h"

namespace neap::arena {

class TagTicket : public Ticket {
 protected:
  /// Holds the table lock after it.
  TagTicket(Arena::Impl& arena, std::span<const std::string> names)
      : arena_(arena),
        lock_(arena.table),
        moving_(std::in_place, arena, lock_, tags_of(arena, names)) {}

  /// Of a begin that went well.
  Status begun() {
    begun_ = true;
    seconds_ = watch_.seconds();
    return {};
  }
  /// What finish() does first. `move`: "A resume".
  Status finish_once(const char* move) {
    if (std::exchange(begun_, false)) return {};
    return {ErrorCode::kInvalidArgument, format("{} is finished once", move)};
  }
  /// For the destructors of derived classes.
  void finish_if_begun() {
    if (!begun_) return;
    if (const auto done = finish(); !done.ok()) log::error(done.status().message());
  }
  /// The failure of `move` ("resuming"). Needs the table lock, and leaves it.
  Status failed(Status status, const char* move) {
    note_failure(moving_->tags());
    status = std::move(status).with_context(format("{} {}", move, join(moving_->tags())));
    end();
    return status;
  }
  /// The tags may move again. Needs the table lock, and leaves it.
  void end() {
    moving_.reset();
    lock_.unlock();
  }

  Arena::Impl& arena_;
  Stopwatch watch_;
  std::unique_lock<std::shared_mutex> lock_;  // held only inside calls
  std::optional<Moving> moving_;
  double seconds_ = 0;  // of begin

 private:
  bool begun_ = false;
};

}  // namespace neap::arena
