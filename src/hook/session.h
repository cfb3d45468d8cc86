// The process's event sink. It forwards events to a trace while one is recorded.
//
// Model     Arenas keep this sink; traces start and stop behind it. Names are interned here for the
//           life of the process. A new Recorder interns them in the same order, so ids agree.
//
// Threads   any.
//
// Fork      a child does not record.
//
// Cost      one relaxed load per event without a trace.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "trace/event.h"
#include "trace/recorder.h"

namespace neap::hook {

class Session final : public trace::EventSink {
 public:
  static Session& get();

  Status start(const std::string& path, const trace::Metadata& metadata);
  Status stop();
  [[nodiscard]] bool is_recording() const { return active_.load(std::memory_order_relaxed); }

  void record(const trace::Event& event) override;
  std::uint32_t intern(std::string_view name) override;

  void record_outside(trace::EventKind kind, const void* at, Bytes size, int device);
  void mark(trace::EventKind kind, std::string_view name, Bytes size = {});

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void forget_in_child() { active_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> active_{false};
  std::shared_mutex mutex_;
  trace::NameTable names_;
  std::unique_ptr<trace::Recorder> recorder_;
};

}  // namespace neap::hook
