#include "device/cuda/cuda_copy_queue.h"

#include <array>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"

namespace neap::device {
namespace {

using cuda::ContextScope;
using cuda::to_status;

enum Direction : std::size_t { kToHost = 0, kToDevice = 1 };

class CudaCopyQueue final : public CopyQueue {
 public:
  explicit CudaCopyQueue(const cuda::Card& card) : card_(card) {}

  Status init() {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    for (cuda::Stream& stream : streams_) {
      NEAP_TRY(to_status(*card_.driver,
                         card_.driver->stream_create(&stream, cuda::kStreamNonBlocking),
                         "making a copy stream"));
    }
    return {};
  }

  ~CudaCopyQueue() override {
    const ContextScope scope(card_);
    if (!scope.status().ok()) return;
    for (const auto& [mark, event] : marks_) spare_.push_back(event);
    for (const Hold& hold : holds_) spare_.insert(spare_.end(), {hold.from, hold.to});
    for (cuda::Event event : spare_) (void)card_.driver->event_destroy(event);
    for (cuda::Stream stream : streams_) {
      if (stream == nullptr) continue;
      const Status done =
          to_status(*card_.driver, card_.driver->stream_synchronize(stream), "finishing copies");
      if (!done.ok() && done.code() != ErrorCode::kDeviceLost) log::warn(done.message());
      (void)card_.driver->stream_destroy(stream);
    }
  }

  Status to_host(const Copy& copy) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return to_status(*card_.driver,
                     card_.driver->copy_to_host_async(copy.host, copy.device, copy.size.count(),
                                                      streams_[kToHost]),
                     "copying to the host");
  }
  Status to_device(const Copy& copy) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return to_status(*card_.driver,
                     card_.driver->copy_to_device_async(copy.device, copy.host, copy.size.count(),
                                                        streams_[kToDevice]),
                     "copying to the device");
  }
  Result<std::uint64_t> mark_to_host() override { return mark(kToHost); }
  Result<std::uint64_t> mark_to_device() override { return mark(kToDevice); }

  Status wait(std::uint64_t mark) override {
    const auto it = marks_.find(mark);
    if (it == marks_.end()) return {};  // already waited for
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    Status status =
        to_status(*card_.driver, card_.driver->event_synchronize(it->second), "waiting for a copy");
    spare_.push_back(it->second);
    marks_.erase(it);
    return status;
  }

  Status begin_after(StreamId stream) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    NEAP_TRY_ASSIGN(const cuda::Event event, take_event());
    Status status = record(event, reinterpret_cast<cuda::Stream>(stream));  // NOLINT
    for (cuda::Stream copies : streams_)
      if (status.ok()) status = order(copies, event);
    spare_.push_back(event);  // streams that wait for it keep the recorded point
    return status;
  }

  Status hold_stream(StreamId stream, std::uint64_t mark, std::size_t account) override {
    const auto it = marks_.find(mark);
    if (it == marks_.end()) return {};  // already waited for
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    auto* const held = reinterpret_cast<cuda::Stream>(stream);  // NOLINT
    NEAP_TRY_ASSIGN(const cuda::Event from, record_new(held));
    Status ordered = order(held, it->second);
    Result<cuda::Event> to = ordered.ok() ? record_new(held) : Result<cuda::Event>(ordered);
    if (!to.ok()) {
      spare_.push_back(from);
      return to.status();
    }
    holds_.push_back({account, from, *to});
    return holds_.size() > kMostHolds ? count_oldest_hold() : Status();
  }

  Result<std::vector<double>> take_held_seconds() override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    Status first;
    while (!holds_.empty())
      if (Status counted = count_oldest_hold(); first.ok()) first = std::move(counted);
    std::vector<double> held = std::exchange(held_seconds_, {});
    if (!first.ok()) return first;
    return held;
  }

  Status hold_other_direction(std::uint64_t mark) override {
    const auto it = marks_.find(mark);
    if (it == marks_.end()) return {};  // already waited for
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    // The mark's own direction is in order anyway.
    for (cuda::Stream copies : streams_) NEAP_TRY(order(copies, it->second));
    return {};
  }

  Result<double> seconds_between(std::uint64_t from, std::uint64_t to) override {
    const auto first = marks_.find(from);
    const auto last = marks_.find(to);
    if (first == marks_.end() || last == marks_.end())
      return Status(ErrorCode::kInvalidArgument, "a mark of copies was waited for before");
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return seconds_of(first->second, last->second);
  }

  Status drain() override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    Status first;
    for (cuda::Stream stream : streams_) {
      Status status =
          to_status(*card_.driver, card_.driver->stream_synchronize(stream), "finishing copies");
      if (first.ok()) first = std::move(status);
    }
    for (const auto& [mark, event] : marks_) spare_.push_back(event);
    marks_.clear();
    return first;
  }

 private:
  Result<std::uint64_t> mark(Direction direction) {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    NEAP_TRY_ASSIGN(const cuda::Event event, record_new(streams_[direction]));
    marks_.emplace(++last_mark_, event);
    return last_mark_;
  }
  // The following functions need the GPU's context.
  Result<cuda::Event> record_new(cuda::Stream stream) {
    NEAP_TRY_ASSIGN(const cuda::Event event, take_event());
    if (Status status = record(event, stream); !status.ok()) {
      spare_.push_back(event);
      return status;
    }
    return event;
  }
  Status count_oldest_hold() {
    const Hold hold = holds_.front();
    holds_.pop_front();
    spare_.insert(spare_.end(), {hold.from, hold.to});
    NEAP_TRY_ASSIGN(const double seconds, seconds_of(hold.from, hold.to));
    if (held_seconds_.size() <= hold.account) held_seconds_.resize(hold.account + 1);
    held_seconds_[hold.account] += seconds;
    return {};
  }
  /// Blocks until both events were reached.
  Result<double> seconds_of(cuda::Event from, cuda::Event to) {
    NEAP_TRY(to_status(*card_.driver, card_.driver->event_synchronize(to), "waiting for a copy"));
    float milliseconds = 0;
    NEAP_TRY(to_status(*card_.driver, card_.driver->event_elapsed(&milliseconds, from, to),
                       "timing copies"));
    return static_cast<double>(milliseconds) * 1e-3;
  }
  Result<cuda::Event> take_event() {
    cuda::Event event = nullptr;
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    } else {
      NEAP_TRY(to_status(*card_.driver, card_.driver->event_create(&event, 0), "making an event"));
    }
    return event;
  }
  Status record(cuda::Event event, cuda::Stream stream) {
    return to_status(*card_.driver, card_.driver->event_record(event, stream), "marking work");
  }
  Status order(cuda::Stream stream, cuda::Event event) {
    return to_status(*card_.driver, card_.driver->stream_wait_event(stream, event, 0),
                     "ordering streams");
  }

  // The period from one event to the other in which a stream waited.
  struct Hold {
    std::size_t account;
    cuda::Event from, to;
  };
  // Maximum number of stored holds. Older ones have been reached.
  static constexpr std::size_t kMostHolds = 1024;

  const cuda::Card& card_;
  std::array<cuda::Stream, 2> streams_{};
  std::unordered_map<std::uint64_t, cuda::Event> marks_;
  std::vector<cuda::Event> spare_;
  std::deque<Hold> holds_;  // not counted yet
  std::vector<double> held_seconds_;
  std::uint64_t last_mark_ = 0;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> make_cuda_copy_queue(const cuda::Card& card) {
  auto queue = std::make_unique<CudaCopyQueue>(card);
  NEAP_TRY(queue->init());
  return std::unique_ptr<CopyQueue>(std::move(queue));
}

}  // namespace neap::device
