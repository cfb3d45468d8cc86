// What pause, resume, exchange and the partial moves share. Internal to arena/.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arena/stages.h"

namespace neap::arena {

/// The time of a move, and of its steps for the log.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const { return since(start_); }
  /// Ends a step; `name` is a literal.
  void lap(const char* name) {
    steps_.emplace_back(name, since(last_));
    last_ = Clock::now();
  }
  /// One line at debug level: the move, its tags, the milliseconds of each step.
  void log(const char* move, const std::vector<Tag*>& tags, const MoveReport& report) const;

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  std::vector<std::pair<const char*, double>> steps_;
};

/// A copy queue for one move; waits for its copies and goes back at the end.
class QueueLease {
 public:
  explicit QueueLease(Arena::Impl& arena) : arena_(arena) {}
  QueueLease(const QueueLease&) = delete;
  QueueLease& operator=(const QueueLease&) = delete;
  ~QueueLease();
  Status take();
  /// Waits for its copies, whatever their outcome, and gives the queue up.
  void drop();
  [[nodiscard]] bool taken() const { return queue_ != nullptr; }
  [[nodiscard]] device::CopyQueue& get() const { return *queue_; }

 private:
  Arena::Impl& arena_;
  std::unique_ptr<device::CopyQueue> queue_;
};

Status wait_for(Arena::Impl& arena, const Fence& fence);
/// Under the table lock: the tags of these names that exist; all for an empty list.
[[nodiscard]] std::vector<Tag*> tags_of(Arena::Impl& arena, std::span<const std::string> names);
[[nodiscard]] std::string join(const std::vector<Tag*>& tags);
[[nodiscard]] Bytes bytes_of(const std::vector<Stage>& stages);
/// The failure of gather_in, explained; not under the table lock.
[[nodiscard]] Status refusal(Arena::Impl& arena, const Status& status);
/// Pages for every stage, waiting up to `wait` for memory.
Status secure_pages(Arena::Impl& arena, Incoming& in, std::chrono::milliseconds wait);

/// Under the table lock: counters and events of a move.
void note_pause(Arena::Impl& arena, const Outgoing& out, double seconds);
void note_resume(Arena::Impl& arena, const Incoming& in, double seconds);
void note_failure(const std::vector<Tag*>& tags);

/// Maps `runs` of one tag with pages from the store or the device; nothing is left on failure.
/// `what` says what they are for, and is asked for a failure's message only.
[[nodiscard]] Result<std::vector<Stage>> fill_runs(Arena::Impl& arena, Tag& tag,
                                                   const std::vector<Run>& runs,
                                                   const std::function<std::string()>& what);

}  // namespace neap::arena
