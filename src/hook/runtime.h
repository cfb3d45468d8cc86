// The process's devices and arenas: opened at first use, never closed.
//
// Model     One arena for each device ordinal. Settings are read when a device is opened.
// Threads   any; find() and devices() take no lock.
// Exit      objects here are never destroyed, so nothing touches the GPU once exit has begun; the
//           driver takes the memory back with the process.
// Fork      a child of a process with an open device gets kUnsupported from everything here; see
//           docs/hook.md.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "device/device.h"
#include "hook/scope.h"

namespace neap::hook {

struct OpenDevice {
  int ordinal = 0;
  device::Device* device = nullptr;
  arena::Arena* arena = nullptr;
};

/// A region and the device that it lives on.
struct Place {
  OpenDevice on;
  arena::RegionInfo region;
};

struct Settings {
  arena::Options arena;
  Bytes margin;  ///< a region is refused as out of memory when less would stay free
};

class Runtime {
 public:
  static Runtime& get();

  /// kUnsupported in a child that was forked after a device was opened.
  [[nodiscard]] Status usable() const;
  [[nodiscard]] Result<int> device_count();
  [[nodiscard]] Result<OpenDevice> open(int ordinal);
  /// Those open now, by ordinal. Empty in a forked child.
  [[nodiscard]] std::vector<OpenDevice> devices() const;

  /// Lets `peer` reach the regions of `ordinal`, now if that device is open, else when it opens.
  Status grant_peer(int ordinal, int peer);

  /// A resident region by the rules of `scope`, margin included.
  [[nodiscard]] Result<arena::RegionInfo> allocate(int ordinal, const Scope& scope, Bytes size);
  /// The region that holds `address`, on whatever device. kNotFound also in a forked child.
  [[nodiscard]] Result<Place> find(const void* address) const;
  /// The same for callers to whom none is no failure: every free of foreign memory asks.
  [[nodiscard]] std::optional<Place> look_up(const void* address) const;
  /// Waits for the device's work (nothing can be in flight on a paused region), then frees it. The
  /// pages stay in the store, or go to the driver for whoever asks next.
  enum class Pages { kKeep, kRelease };
  /// Waits for a stream's use of the region; not once exit has begun.
  Status wait_for(const Place& place, device::StreamId stream);
  Status free(const Place& place, Pages pages);

  Status configure(const Settings& settings,
                   arena::Arena::KeptBuffers kept = arena::Arena::KeptBuffers::kReleaseNow);
  [[nodiscard]] Settings settings() const;
  void set_margin(Bytes margin) { margin_.store(margin.count(), std::memory_order_relaxed); }

  [[nodiscard]] std::uint64_t add_callbacks(std::string tag, arena::Callbacks callbacks);
  Status remove_callbacks(std::uint64_t id);

 private:
  Runtime();
  struct Slot {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<arena::Arena> arena;
  };
  struct Listener {
    std::uint64_t id;
    std::string tag;
    arena::Callbacks callbacks;
    std::vector<std::pair<int, std::uint64_t>> registered;  ///< ordinal and the arena's id
  };
  static constexpr int kMostDevices = 64;

  std::array<std::atomic<Slot*>, kMostDevices> slots_{};
  std::atomic<bool> forked_{false};
  static inline std::atomic<bool> exiting_{false};
  std::atomic<std::uint64_t> margin_{0};
  mutable std::mutex mutex_;  ///< opening, settings, listeners, grants
  Settings settings_;
  std::vector<Listener> listeners_;
  std::uint64_t next_listener_ = 1;
  std::vector<std::pair<int, int>> grants_;  ///< device and peer, for devices that are not open
};

/// What the process begins with: by environment, as initial_scope().
[[nodiscard]] Settings initial_settings();

/// Opens one device by what NEAP_HOOK_DEVICE says: "cuda" (the default) or "host:SIZE[xCOUNT]".
[[nodiscard]] Result<std::unique_ptr<device::Device>> open_device(int ordinal);
[[nodiscard]] Result<int> count_devices();

}  // namespace neap::hook
