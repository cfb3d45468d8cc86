#include "hook/session.h"

#include <mutex>

namespace neap::hook {

Session& Session::get() {
  static auto* const kSession = new Session();  // outlives static destruction
  return *kSession;
}

Status Session::start(const std::string& path, const trace::Metadata& metadata) {
  const std::lock_guard lock(mutex_);
  if (recorder_ != nullptr) {
    return {ErrorCode::kBusy, "A trace is already being recorded to " + recorder_->path().string()};
  }
  NEAP_TRY_ASSIGN(auto recorder, trace::Recorder::open(path, metadata));
  for (std::uint32_t id = 1; id < names_.size(); ++id) recorder->intern(names_.name(id));
  recorder_ = std::move(recorder);
  active_.store(true, std::memory_order_release);
  return {};
}

Status Session::stop() {
  std::unique_ptr<trace::Recorder> recorder;
  {
    const std::lock_guard lock(mutex_);
    active_.store(false, std::memory_order_release);
    recorder = std::move(recorder_);
  }
  if (recorder == nullptr) return {ErrorCode::kNotFound, "No trace is being recorded"};
  return recorder->close();
}

void Session::record(const trace::Event& event) {
  if (!active_.load(std::memory_order_acquire)) return;
  const std::shared_lock lock(mutex_);
  if (recorder_ != nullptr) recorder_->record(event);
}

std::uint32_t Session::intern(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto known = names_.size();
  const std::uint32_t id = names_.intern(name);
  if (names_.size() != known && recorder_ != nullptr) recorder_->intern(name);
  return id;
}

void Session::record_outside(trace::EventKind kind, const void* at, Bytes size, int device) {
  if (!active_.load(std::memory_order_acquire)) return;
  trace::Event event;
  event.kind = kind;
  event.address = reinterpret_cast<std::uint64_t>(at);
  event.size = size.count();
  event.device = static_cast<std::uint16_t>(device);
  record(event);
}

void Session::mark(trace::EventKind kind, std::string_view name, Bytes size) {
  if (!active_.load(std::memory_order_acquire)) return;
  trace::Event event;
  event.kind = kind;
  event.name = intern(name);
  event.size = size.count();
  record(event);
}

}  // namespace neap::hook
