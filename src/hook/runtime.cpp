#include "hook/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "base/format.h"
#include "base/log.h"
#include "hook/outside.h"
#include "hook/session.h"

namespace neap::hook {
namespace {

/// Larger than any address range. Such a request is out of memory, as in the CUDA runtime.
constexpr Bytes kLargestRegion{1ull << 56};

}  // namespace

Runtime& Runtime::get() {
  static auto* const kRuntime = new Runtime();  // outlives static destruction
  return *kRuntime;
}

Runtime::Runtime() : settings_(initial_settings()) {
  settings_.arena.events = &Session::get();
  // No other thread may hold these locks during a fork, because they would stay locked in the
  // child.
  ::pthread_atfork(
      [] {
        Runtime::get().mutex_.lock();
        lock_scopes();
        Outside::get().lock_all();
        Session::get().lock();
      },
      [] {
        Session::get().unlock();
        Outside::get().unlock_all();
        unlock_scopes();
        Runtime::get().mutex_.unlock();
      },
      [] {
        Runtime& self = Runtime::get();
        Session::get().forget_in_child();
        Session::get().unlock();
        Outside::get().unlock_all();
        unlock_scopes();
        for (const auto& slot : self.slots_) {
          if (slot.load(std::memory_order_relaxed) != nullptr) self.forked_.store(true);
        }
        self.mutex_.unlock();
      });
}

Status Runtime::usable() const {
  if (!forked_.load(std::memory_order_relaxed)) return {};
  return {ErrorCode::kUnsupported,
          "This process was forked after its parent had opened a GPU, so CUDA and Neap do not work "
          "in it; start it with spawn or exec, or fork before the first region"};
}

Result<int> Runtime::device_count() {
  NEAP_TRY(usable());
  return count_devices();
}

Result<OpenDevice> Runtime::open(int ordinal) {
  NEAP_TRY(usable());
  if (ordinal < 0 || ordinal >= kMostDevices) {
    return Status(ErrorCode::kInvalidArgument, format("There is no device {}", ordinal));
  }
  auto& place = slots_[static_cast<std::size_t>(ordinal)];
  if (Slot* slot = place.load(std::memory_order_acquire)) {
    return OpenDevice{ordinal, slot->device.get(), slot->arena.get()};
  }
  const std::lock_guard lock(mutex_);
  Slot* slot = place.load(std::memory_order_acquire);
  if (slot == nullptr) {
    auto fresh = std::make_unique<Slot>();
    NEAP_TRY_ASSIGN(fresh->device, open_device(ordinal));
    NEAP_TRY_ASSIGN(fresh->arena, arena::Arena::make(*fresh->device, settings_.arena));
    for (const auto& [device, peer] : grants_) {
      if (device != ordinal) continue;
      const Status granted = fresh->device->grant_peer(peer);
      if (!granted.ok()) log::warn(granted.message());
    }
    for (Listener& listener : listeners_) {
      listener.registered.emplace_back(
          ordinal, fresh->arena->add_callbacks(listener.tag, listener.callbacks));
    }
    slot = fresh.release();
    place.store(slot, std::memory_order_release);
    // Registered after the driver's handler, so it runs before it.
    static const int kAtExit = std::atexit([] {
      exiting_.store(true);
      for (const OpenDevice& on : get().devices()) on.arena->finish_disk_files();
    });
    (void)kAtExit;
  }
  return OpenDevice{ordinal, slot->device.get(), slot->arena.get()};
}

std::vector<OpenDevice> Runtime::devices() const {
  std::vector<OpenDevice> open;
  if (forked_.load(std::memory_order_relaxed)) return open;
  for (int i = 0; i < kMostDevices; ++i) {
    if (Slot* slot = slots_[static_cast<std::size_t>(i)].load(std::memory_order_acquire)) {
      open.push_back({i, slot->device.get(), slot->arena.get()});
    }
  }
  return open;
}

Status Runtime::grant_peer(int ordinal, int peer) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  for (const OpenDevice& on : devices()) {
    if (on.ordinal == ordinal) return on.device->grant_peer(peer);
  }
  const std::pair grant{ordinal, peer};
  if (std::find(grants_.begin(), grants_.end(), grant) == grants_.end()) grants_.push_back(grant);
  return {};
}

Result<arena::RegionInfo> Runtime::allocate(int ordinal, const Scope& scope, Bytes size) {
  NEAP_TRY_ASSIGN(const OpenDevice on, open(ordinal));
  const Bytes margin(margin_.load(std::memory_order_relaxed));
  const bool absurd = size > kLargestRegion;
  if (!margin.is_zero() || absurd) {
    NEAP_TRY_ASSIGN(const device::MemoryInfo memory, on.device->memory());
    const arena::Stats stats = on.arena->stats();
    const Bytes free = memory.free + stats.page_store;
    if (absurd || free < size + margin) {
      MemoryShortage shortage{absurd ? size : size + margin, free, memory.total, {}};
      for (const auto& tag : stats.tags) {
        if (!tag.mapped.is_zero()) shortage.holders.push_back({tag.tag, tag.mapped});
      }
      std::sort(shortage.holders.begin(), shortage.holders.end(),
                [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
      return Status::out_of_memory(
          format("A region of tag \"{}\" ({}, plus a margin of {})", scope.tag, size, margin),
          std::move(shortage));
    }
  }
  return on.arena->create(scope.tag, size, scope.policy);
}

Result<Place> Runtime::find(const void* address) const {
  if (auto place = look_up(address)) return std::move(*place);
  return Status(ErrorCode::kNotFound, format("No region holds address {}", address));
}

std::optional<Place> Runtime::look_up(const void* address) const {
  if (!forked_.load(std::memory_order_relaxed)) {
    for (int i = 0; i < kMostDevices; ++i) {
      Slot* slot = slots_[static_cast<std::size_t>(i)].load(std::memory_order_acquire);
      if (slot == nullptr) continue;
      if (auto region = slot->arena->look_up(reinterpret_cast<device::Address>(address))) {
        return Place{{i, slot->device.get(), slot->arena.get()}, std::move(*region)};
      }
    }
  }
  return std::nullopt;
}

Status Runtime::wait_for(const Place& place, device::StreamId stream) {
  if (exiting_.load(std::memory_order_relaxed)) return {};
  return place.on.device->synchronize(stream);
}

Status Runtime::free(const Place& place, Pages pages) {
  // Destructors of static objects also free memory. The driver frees it with the process.
  if (exiting_.load(std::memory_order_relaxed)) return {};
  if (!place.region.mapped.is_zero()) NEAP_TRY(place.on.device->synchronize());
  return place.on.arena->destroy(place.region.id, pages == Pages::kRelease);
}

Status Runtime::configure(const Settings& settings, arena::Arena::KeptBuffers kept) {
  NEAP_TRY(usable());
  const std::lock_guard lock(mutex_);
  const auto open = devices();
  if (!open.empty() && settings.arena.touch_threads != settings_.arena.touch_threads) {
    return {ErrorCode::kBusy, "touch_threads cannot be changed while a device is open"};
  }
  settings_ = settings;
  settings_.arena.events = &Session::get();
  set_margin(settings.margin);
  for (const OpenDevice& on : open) {
    on.arena->set_page_store_budget(settings.arena.page_store_budget);
    on.arena->set_backup_options(settings.arena.keep_host_buffers, settings.arena.host_budget,
                                 settings.arena.disk_folder, kept);
  }
  return {};
}

Settings Runtime::settings() const {
  const std::lock_guard lock(mutex_);
  Settings now = settings_;
  now.margin = Bytes(margin_.load(std::memory_order_relaxed));
  return now;
}

std::uint64_t Runtime::add_callbacks(std::string tag, arena::Callbacks callbacks) {
  const std::lock_guard lock(mutex_);
  Listener listener{next_listener_++, std::move(tag), std::move(callbacks), {}};
  for (const OpenDevice& on : devices()) {
    listener.registered.emplace_back(on.ordinal,
                                     on.arena->add_callbacks(listener.tag, listener.callbacks));
  }
  listeners_.push_back(std::move(listener));
  return listeners_.back().id;
}

Status Runtime::remove_callbacks(std::uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto it = std::find_if(listeners_.begin(), listeners_.end(),
                               [id](const Listener& listener) { return listener.id == id; });
  if (it == listeners_.end()) {
    return {ErrorCode::kNotFound, format("There are no callbacks with the number {}", id)};
  }
  const auto registered = std::move(it->registered);
  listeners_.erase(it);
  // The arenas wait for running callbacks, which may need this lock.
  lock.unlock();
  for (const auto& [ordinal, number] : registered) {
    Slot* slot = slots_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
    slot->arena->remove_callbacks(number);
  }
  return {};
}

}  // namespace neap::hook
