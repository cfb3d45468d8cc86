#include "device/host/host_copy_queue.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/format.h"

namespace neap::device {
namespace {

/// One direction: copies in order, counted as they finish.
class Lane {
 public:
  Lane() : thread_([this] { work(); }) {}
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
  std::uint64_t pushed() {
    const std::lock_guard lock(mutex_);
    return pushed_;
  }
  void wait(std::uint64_t count) {
    std::unique_lock lock(mutex_);
    done_cv_.wait(lock, [&] { return done_ >= count; });
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
      std::memcpy(item.to, item.from, item.size);
      lock.lock();
      ++done_;
      done_cv_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_cv_;
  std::deque<Item> queue_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

// A mark is a count of copies with the direction in its lowest bit.
constexpr std::uint64_t kToDeviceBit = 1;

class HostCopyQueue final : public CopyQueue {
 public:
  explicit HostCopyQueue(const HostCopyChecks& checks) : checks_(checks) {}

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
  Result<std::uint64_t> mark_to_host() override { return to_host_.pushed() << 1; }
  Result<std::uint64_t> mark_to_device() override {
    return to_device_.pushed() << 1 | kToDeviceBit;
  }
  Status wait(std::uint64_t mark) override {
    ((mark & kToDeviceBit) != 0 ? to_device_ : to_host_).wait(mark >> 1);
    return {};
  }
  Status drain() override {
    to_host_.wait(to_host_.pushed());
    to_device_.wait(to_device_.pushed());
    return {};
  }

 private:
  const HostCopyChecks& checks_;
  Lane to_host_, to_device_;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> make_host_copy_queue(const HostCopyChecks& checks) {
  try {
    return std::unique_ptr<CopyQueue>(std::make_unique<HostCopyQueue>(checks));
  } catch (const std::system_error& error) {
    return Status(ErrorCode::kOutOfHostMemory,
                  format("cannot start a copy thread: {}", error.what()));
  }
}

}  // namespace neap::device
