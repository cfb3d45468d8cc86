// Base of the tickets of tags. The tags are marked as moving from begin to finish, so no other move
// touches them.
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
  /// Returns with the table lock held.
  TagTicket(Arena::Impl& arena, std::span<const std::string> names)
      : arena_(arena),
        lock_(arena.table),
        moving_(std::in_place, arena, lock_, tags_of(arena, names)) {}

  /// Call after a successful begin.
  Status begun() {
    begun_ = true;
    seconds_ = watch_.seconds();
    return {};
  }
  /// First step of finish(). `move` names the move in messages, for example "A resume".
  Status finish_once(const char* move) {
    if (std::exchange(begun_, false)) return {};
    return {ErrorCode::kInvalidArgument, format("{} is finished once", move)};
  }
  /// Call in the destructors of derived classes.
  void finish_if_begun() {
    if (!begun_) return;
    if (const auto done = finish(); !done.ok()) log::error(done.status().message());
  }
  /// Builds the failure of `move` ("resuming"). The caller holds the table lock; this releases it.
  Status failed(Status status, const char* move) {
    note_failure(moving_->tags());
    status = std::move(status).with_context(format("{} {}", move, join(moving_->tags())));
    end();
    return status;
  }
  /// Lets the tags move again. The caller holds the table lock; this releases it.
  void end() {
    moving_.reset();
    lock_.unlock();
  }

  Arena::Impl& arena_;
  Stopwatch watch_;
  std::unique_lock<std::shared_mutex> lock_;  // held only inside calls
  std::optional<Moving> moving_;
  double seconds_ = 0;  // spent in begin

 private:
  bool begun_ = false;
};

}  // namespace neap::arena
