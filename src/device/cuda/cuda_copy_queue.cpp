#include "device/cuda/cuda_copy_queue.h"

#include <array>
#include <unordered_map>
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
    if (it == marks_.end()) return {};  // waited for before
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    const Status status =
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
    spare_.push_back(event);  // what waits for it keeps what was recorded
    return status;
  }

  Status hold_stream(StreamId stream, std::uint64_t mark) override {
    const auto it = marks_.find(mark);
    if (it == marks_.end()) return {};  // waited for before
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return order(reinterpret_cast<cuda::Stream>(stream), it->second);  // NOLINT
  }

  Status hold_other_direction(std::uint64_t mark) override {
    const auto it = marks_.find(mark);
    if (it == marks_.end()) return {};  // waited for before
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    // Its own direction is in order anyway.
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
    NEAP_TRY(to_status(*card_.driver, card_.driver->event_synchronize(last->second),
                       "waiting for a copy"));
    float milliseconds = 0;
    NEAP_TRY(to_status(*card_.driver,
                       card_.driver->event_elapsed(&milliseconds, first->second, last->second),
                       "timing copies"));
    return static_cast<double>(milliseconds) * 1e-3;
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
    NEAP_TRY_ASSIGN(const cuda::Event event, take_event());
    if (Status status = record(event, streams_[direction]); !status.ok()) {
      spare_.push_back(event);
      return status;
    }
    marks_.emplace(++last_mark_, event);
    return last_mark_;
  }
  // These three in the context.
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

  const cuda::Card& card_;
  std::array<cuda::Stream, 2> streams_{};
  std::unordered_map<std::uint64_t, cuda::Event> marks_;
  std::vector<cuda::Event> spare_;
  std::uint64_t last_mark_ = 0;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> make_cuda_copy_queue(const cuda::Card& card) {
  auto queue = std::make_unique<CudaCopyQueue>(card);
  NEAP_TRY(queue->init());
  return std::unique_ptr<CopyQueue>(std::move(queue));
}

}  // namespace neap::device
