#include "trace/recorder.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <mutex>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "trace/event_ring.h"
#include "trace/live_file.h"
#include "trace/recording.h"
#include "trace/wire_format.h"

namespace neap::trace {
namespace {

using Clock = std::chrono::steady_clock;

// Counts forks that this process has seen. A Recorder made before a fork belongs to the parent.
std::atomic<std::uint32_t> fork_epoch{0};
void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::pthread_atfork(nullptr, nullptr, [] { fork_epoch.fetch_add(1, std::memory_order_relaxed); });
  });
}

constexpr std::size_t kLongestName = 1U << 16;
constexpr std::size_t kLongestMetadata = wire::kMaxBlockSize - (1U << 20);

enum class State : int { kOpen, kClosing, kClosed };

Status check_metadata(std::string_view key, std::string_view value,
                      const std::filesystem::path& trace) {
  if (key.size() + value.size() <= kLongestMetadata) return {};
  return {ErrorCode::kInvalidArgument,
          format("Metadata \"{}\" of trace {} is over {}", excerpt(key, 80), trace.string(),
                 Bytes(kLongestMetadata))};
}

}  // namespace

struct Recorder::Impl {
  explicit Impl(std::size_t ring_events) : ring(ring_events) { ::sem_init(&wake, 0, 0); }

  std::filesystem::path path;
  RecorderOptions options;
  std::uint32_t epoch = 0;
  Clock::time_point start;
  EventRing ring;

  alignas(64) std::atomic<State> state{State::kOpen};
  std::atomic<bool> full{false};     // the file has reached its maximum size
  std::atomic<bool> stalled{false};  // a writer timed out: drop events until there is space
  std::atomic<std::uint64_t> dropped{0};
  sem_t wake{};
  pthread_t thread{};
  bool thread_runs = false;

  std::mutex mutex;  // guards names, written and status
  std::condition_variable written_changed;
  NameTable names;
  std::uint64_t written = 0;  // tickets whose events are in the file or dropped
  Status status;

  // Used by the background thread only:
  LiveFile file;
  std::vector<Event> batch;
  std::size_t batch_limit = 0;
  std::uint64_t last_time = 0;
  bool failed = false;

  ~Impl() { ::sem_destroy(&wake); }

  [[nodiscard]] bool is_ours() const { return epoch == fork_epoch.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t now() const {
    const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(since.count()));
  }

  bool wait_for_room();
  void drain();
  void write_batch();
  Status end_at_limit();
  void take_failure(const Status& failure);
  void run();
  static void* run_thread(void* self) {
    static_cast<Impl*>(self)->run();
    return nullptr;
  }
};

bool Recorder::Impl::wait_for_room() {
  if (!stalled.load(std::memory_order_relaxed)) {
    const auto deadline = Clock::now() + options.full_wait;
    ::sem_post(&wake);
    while (state.load(std::memory_order_relaxed) == State::kOpen) {
      if (ring.has_room()) return true;
      if (Clock::now() >= deadline) {
        stalled.store(true, std::memory_order_relaxed);
        break;
      }
      constexpr timespec kPause{0, 50'000};
      ::nanosleep(&kPause, nullptr);
    }
  }
  dropped.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void Recorder::record(const Event& event) {
  Impl& self = *impl_;
  // The background thread may call hooked allocators. It must not wait for itself.
  if (self.state.load(std::memory_order_acquire) != State::kOpen ||
      self.full.load(std::memory_order_relaxed) || !self.is_ours() ||
      ::pthread_equal(::pthread_self(), self.thread) != 0)
    return;
  const std::uint64_t time = event.time_ns != 0 ? event.time_ns : self.now();
  EventRing::Push push = EventRing::Push::kFull;
  while ((push = self.ring.push(event, time)) == EventRing::Push::kFull)
    if (!self.wait_for_room()) return;
  // Wake the writer four times per lap of the ring, so that a burst does not wait for the timer.
  if (push == EventRing::Push::kDoneQuarter) ::sem_post(&self.wake);
}

void Recorder::Impl::drain() {
  Event event;
  while (ring.pop(event)) {
    // Two writers may take their times in one order and their tickets in the other.
    last_time = event.time_ns = std::max(last_time, event.time_ns);
    batch.push_back(event);
    if (batch.size() == batch_limit) write_batch();
  }
}

void Recorder::Impl::take_failure(const Status& failure) {
  if (failure.ok() || failed) return;
  failed = true;
  log::warn(failure.message() + "; recording stopped after " + std::to_string(file.events()) +
            " events, the program continues");
  const std::lock_guard lock(mutex);
  status = failure;
}

Status Recorder::Impl::end_at_limit() {
  if (options.most_bytes.is_zero() || file.bytes() < options.most_bytes.count()) return {};
  full.store(true, std::memory_order_relaxed);
  const std::string text = format(
      "the trace ends after {} events, where it reached its largest size of {}; what came later is "
      "not in it",
      file.events(), options.most_bytes);
  {
    const std::lock_guard lock(mutex);
    log::info(format("{}: {}", path.string(), text));
  }
  return file.add_warning(text);
}

void Recorder::Impl::write_batch() {
  if (!failed) {
    const auto write = [&]() -> Status {
      NEAP_TRY(file.add_new(names, mutex));
      if (!batch.empty() && !full.load(std::memory_order_relaxed)) {
        NEAP_TRY(file.add(batch));
        NEAP_TRY(end_at_limit());
      }
      return file.add_dropped(dropped.load(std::memory_order_relaxed));
    };
    take_failure(write());
  }
  batch.clear();
  stalled.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex);
    written = ring.popped();
  }
  written_changed.notify_all();
}

void Recorder::Impl::run() {
  while (true) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    const auto wait = std::chrono::nanoseconds(options.flush_interval).count();
    until.tv_sec += static_cast<time_t>((until.tv_nsec + wait) / 1'000'000'000);
    until.tv_nsec = static_cast<long>((until.tv_nsec + wait) % 1'000'000'000);
    while (::sem_timedwait(&wake, &until) != 0 && errno == EINTR) {
    }
    while (::sem_trywait(&wake) == 0) {
    }
    const bool closing = state.load(std::memory_order_acquire) == State::kClosing;
    // The event of a ticket taken before close may not be in its place yet.
    const std::uint64_t target = closing ? ring.pushed() : ring.popped();
    drain();
    while (ring.popped() < target) {
      ::sched_yield();
      drain();
    }
    write_batch();
    if (closing) return;
  }
}

Recorder::Recorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Recorder>> Recorder::open(const std::filesystem::path& path,
                                                 const Metadata& metadata,
                                                 RecorderOptions options) {
  for (const auto& [key, value] : metadata) NEAP_TRY(check_metadata(key, value, path));
  watch_forks();
  auto impl = std::make_unique<Impl>(
      std::clamp<std::size_t>(options.ring_events, 1024, std::size_t{1} << 28));
  Impl& self = *impl;
  self.path = path;
  self.options = options;
  self.epoch = fork_epoch.load(std::memory_order_relaxed);
  self.batch_limit = std::min(self.ring.capacity(), wire::kMaxBlockEvents);
  self.batch.reserve(self.batch_limit);

  NEAP_TRY(self.file.create(path));
  self.start = Clock::now();
  NEAP_TRY(self.file.begin(std::chrono::system_clock::now()));
  NEAP_TRY(self.file.add(metadata));

  std::unique_ptr<Recorder> recorder(new Recorder(std::move(impl)));
  const SignalsBlocked blocked;
  if (const int error = ::pthread_create(&self.thread, nullptr, &Impl::run_thread, &self);
      error != 0) {
    self.state.store(State::kClosed);
    return Status(ErrorCode::kIo, format("Cannot start the writer of trace {}: {}", path.string(),
                                         system_reason(error)));
  }
  self.thread_runs = true;
  return recorder;
}

Recorder::~Recorder() {
  const bool was_open = impl_->state.load() == State::kOpen;
  // A failure of the background thread was already logged.
  if (const Status s = close(); was_open && !s.ok() && !impl_->failed) log::warn(s.message());
}

std::uint32_t Recorder::intern(std::string_view name) {
  Impl& self = *impl_;
  if (!self.is_ours()) return 0;  // in a forked child the lock may stay locked
  const std::lock_guard lock(self.mutex);
  return self.names.intern(front_of(name, kLongestName));
}

Status Recorder::flush() {
  Impl& self = *impl_;
  if (!self.is_ours()) return {};
  const std::uint64_t target = self.ring.pushed();
  std::unique_lock lock(self.mutex);
  while (self.thread_runs && self.written < target) {
    ::sem_post(&self.wake);
    self.written_changed.wait_for(lock, std::chrono::milliseconds(10));
  }
  return self.status;
}

Status Recorder::close() {
  Impl& self = *impl_;
  if (!self.is_ours()) {
    self.file.abandon();
    self.state.store(State::kClosed);
    return {};
  }
  State expected = State::kOpen;
  if (!self.state.compare_exchange_strong(expected, State::kClosing)) {
    const std::lock_guard lock(self.mutex);
    return self.status;
  }
  ::sem_post(&self.wake);
  ::pthread_join(self.thread, nullptr);
  if (!self.failed) {
    const Status end = self.file.end(self.dropped.load());
    const std::lock_guard lock(self.mutex);
    self.status = end;
  }
  self.file.abandon();
  self.state.store(State::kClosed);
  const std::lock_guard lock(self.mutex);
  self.thread_runs = false;
  return self.status;
}

std::uint64_t Recorder::recorded() const {
  return impl_->ring.pushed(std::memory_order_relaxed);
}
std::uint64_t Recorder::dropped() const {
  return impl_->dropped.load(std::memory_order_relaxed);
}
std::filesystem::path Recorder::path() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->path;
}
Status Recorder::rename(const std::filesystem::path& path) {
  const std::lock_guard lock(impl_->mutex);
  std::error_code error;
  std::filesystem::rename(impl_->path, path, error);
  if (error)
    return {ErrorCode::kIo, format("Cannot rename {} to {}: {}", impl_->path.string(),
                                   path.string(), error.message())};
  impl_->path = path;
  return {};
}
std::uint64_t Recorder::now() const {
  return impl_->now();
}

}  // namespace neap::trace
