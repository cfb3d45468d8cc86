// Helpers that pause, resume, exchange, shrink and grow share. Internal to arena/.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arena/transfer_chunks.h"

namespace neap::arena {

/// Measures a move, and its steps for the log.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const { return since(start_); }
  /// Ends a step; `name` is a literal.
  void lap(const char* name) {
    steps_.emplace_back(name, since(last_));
    last_ = Clock::now();
  }
  /// Logs one line at debug level: the move, its tags and the milliseconds of each step.
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

/// A copy queue for one move. Its destructor waits for the copies and returns the queue.
class QueueLease {
 public:
  explicit QueueLease(Arena::Impl& arena) : arena_(arena) {}
  QueueLease(const QueueLease&) = delete;
  QueueLease& operator=(const QueueLease&) = delete;
  ~QueueLease();
  Status take();
  /// Waits for the copies even if they failed, then returns the queue.
  void drop();
  [[nodiscard]] bool taken() const { return queue_ != nullptr; }
  [[nodiscard]] device::CopyQueue& get() const { return *queue_; }

 private:
  Arena::Impl& arena_;
  std::unique_ptr<device::CopyQueue> queue_;
};

/// Measures the copies of a ticket, which all have one direction.
class CopyTimer {
 public:
  enum class Direction { kToHost, kToDevice };
  /// Call before the first copy is queued. `queue` outlives the copies.
  Status start(device::CopyQueue& queue, Direction direction);
  /// Call after the last copy is queued.
  Status stop();
  /// Waits for the copies and returns their seconds; 0 if start() was never called.
  [[nodiscard]] Result<double> seconds();

 private:
  [[nodiscard]] Result<std::uint64_t> mark();
  device::CopyQueue* queue_ = nullptr;
  Direction direction_ = Direction::kToHost;
  std::uint64_t first_ = 0, last_ = 0;
};

/// Cuts the copies of a ticket into pieces, so that other copies of the program wait for one piece
/// only.
void cut_copies(std::vector<TransferChunk>& chunks);

Status wait_for(Arena::Impl& arena, const Fence& fence);
/// The existing tags of these names; all tags for an empty list. Needs the table lock.
[[nodiscard]] std::vector<Tag*> tags_of(Arena::Impl& arena, std::span<const std::string> names);
[[nodiscard]] std::string join(const std::vector<Tag*>& tags);
[[nodiscard]] Bytes bytes_of(const std::vector<TransferChunk>& chunks);
[[nodiscard]] bool has_copies(const std::vector<TransferChunk>& chunks);
/// Places of the region's contents in its backup.
[[nodiscard]] std::vector<Span> spans_of(const Region& region, const Backup& backup);
void sort_spans(std::vector<Span>& spans);
/// The caller holds the table lock.
[[nodiscard]] Result<Region*> find_region(const Arena::Impl& arena, RegionId id);
/// Adds free memory and holders to an out-of-memory status of gather_in. Call it without the table
/// lock.
[[nodiscard]] Status explain_shortage(Arena::Impl& arena, const Status& status);
/// Takes pages for every chunk. Waits up to `wait` for another process to free memory.
Status secure_pages(Arena::Impl& arena, Incoming& in, std::chrono::milliseconds wait);

/// Record counters and events of a move. The caller holds the table lock.
void note_pause(Arena::Impl& arena, const Outgoing& out, double seconds);
void note_resume(Arena::Impl& arena, const Incoming& in, double seconds);
void note_failure(const std::vector<Tag*>& tags);

/// Maps `runs` of one tag with pages from the store or the device. A failure leaves nothing mapped.
/// `what` names the purpose in error messages and is called only for them.
[[nodiscard]] Result<std::vector<TransferChunk>> fill_runs(
    Arena::Impl& arena, Tag& tag, const std::vector<Run>& runs,
    const std::function<std::string()>& what);

}  // namespace neap::arena
