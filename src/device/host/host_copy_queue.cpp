#include "device/host/host_copy_queue.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"

namespace neap::device {
namespace {

using Clock = std::chrono::steady_clock;

/// One direction: copies in order, counted as they finish.
class Lane {
 public:
  explicit Lane(double rate) : rate_(rate), thread_([this] { work(); }) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void push(void* to, const void* from, std::size_t size) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({to, from, size});
      ++pushed_;
    }
    wake_.notify_all();
  }
  std::uint64_t mark() {
    const std::lock_guard lock(mutex_);
    reached_.try_emplace(pushed_, Clock::now());  // set again when pending copies are done
    return pushed_;
  }
  void wait(std::uint64_t count) {
    std::unique_lock lock(mutex_);
    done_cv_.wait(lock, [&] { return done_ >= count; });
    reached_.erase(count);  // bounds memory for a queue that is never drained
  }
  /// Time when the copies before the mark were done; if they were done before, the time when the
  /// mark was made.
  Result<Clock::time_point> time_of(std::uint64_t mark) {
    std::unique_lock lock(mutex_);
    done_cv_.wait(lock, [&] { return done_ >= mark; });
    const auto it = reached_.find(mark);
    if (it != reached_.end()) return it->second;
    return Status(ErrorCode::kInvalidArgument, "there is no such mark of copies");
  }
  void drain() {
    std::unique_lock lock(mutex_);
    done_cv_.wait(lock, [&] { return done_ >= pushed_; });
    reached_.clear();
  }

 private:
  struct Item {
    void* to;
    const void* from;
    std::size_t size;
  };
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Item item = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const Clock::time_point start = Clock::now();
      std::memcpy(item.to, item.from, item.size);
      if (rate_ > 0) {
        const std::chrono::duration<double> least(static_cast<double>(item.size) / rate_);
        std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(least));
      }
      lock.lock();
      ++done_;
      if (const auto it = reached_.find(done_); it != reached_.end()) it->second = Clock::now();
      done_cv_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_cv_;
  std::deque<Item> queue_;
  std::uint64_t pushed_ = 0, done_ = 0;
  std::map<std::uint64_t, Clock::time_point> reached_;  // by mark
  const double rate_;
  bool stop_ = false;
  std::thread thread_;
};

// A mark is a count of copies. Its lowest bit is the direction.
constexpr std::uint64_t kToDeviceBit = 1;

class HostCopyQueue final : public CopyQueue {
 public:
  HostCopyQueue(const HostCopyChecks& checks, double rate)
      : checks_(checks), to_host_(rate), to_device_(rate) {}

  Status to_host(const Copy& copy) override {
    NEAP_TRY(checks_.check_copy(copy));
    to_host_.push(copy.host, reinterpret_cast<const void*>(copy.device), copy.size.count());
    return {};
  }
  Status to_device(const Copy& copy) override {
    NEAP_TRY(checks_.check_copy(copy));
    to_device_.push(reinterpret_cast<void*>(copy.device), copy.host, copy.size.count());
    return {};
  }
  Result<std::uint64_t> mark_to_host() override { return to_host_.mark() << 1; }
  Result<std::uint64_t> mark_to_device() override { return to_device_.mark() << 1 | kToDeviceBit; }
  Status wait(std::uint64_t mark) override {
    lane_of(mark).wait(mark >> 1);
    return {};
  }
  Status begin_after(StreamId) override { return {}; }
  Status hold_stream(StreamId, std::uint64_t mark, std::size_t account) override {
    const Clock::time_point start = Clock::now();
    NEAP_TRY(wait(mark));
    if (held_seconds_.size() <= account) held_seconds_.resize(account + 1);
    held_seconds_[account] += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
  }
  Result<std::vector<double>> take_held_seconds() override {
    return std::exchange(held_seconds_, {});
  }
  Status hold_other_direction(std::uint64_t mark) override { return wait(mark); }
  Result<double> seconds_between(std::uint64_t from, std::uint64_t to) override {
    NEAP_TRY_ASSIGN(const Clock::time_point first, lane_of(from).time_of(from >> 1));
    NEAP_TRY_ASSIGN(const Clock::time_point last, lane_of(to).time_of(to >> 1));
    return std::chrono::duration<double>(last - first).count();
  }
  Status drain() override {
    to_host_.drain();
    to_device_.drain();
    return {};
  }

 private:
  Lane& lane_of(std::uint64_t mark) { return (mark & kToDeviceBit) != 0 ? to_device_ : to_host_; }
  const HostCopyChecks& checks_;
  Lane to_host_, to_device_;
  std::vector<double> held_seconds_;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> make_host_copy_queue(const HostCopyChecks& checks, double rate) {
  try {
    return std::unique_ptr<CopyQueue>(std::make_unique<HostCopyQueue>(checks, rate));
  } catch (const std::system_error& error) {
    return Status(ErrorCode::kOutOfHostMemory,
                  format("cannot start a copy thread: {}", error.what()));
  }
}

}  // namespace neap::device
