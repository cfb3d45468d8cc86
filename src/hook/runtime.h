// The process's devices and arenas: opened at first use, never closed.
//
// Model     One arena per device ordinal. Settings are read when a device is opened.
//
// Threads   any; find() and devices() take no lock.
//
// Exit      objects here are never destroyed, so nothing touches the GPU after exit has begun. The
//           driver frees the memory with the process.
//
// Fork      every call returns kUnsupported in a child of a process with an open device; see
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

/// A region and its device.
struct Place {
  OpenDevice on;
  arena::RegionInfo region;
};

struct Settings {
  arena::Options arena;
  Bytes margin;  ///< creating a region fails as out of memory if less than this would stay free
};

class Runtime {
 public:
  static Runtime& get();

  /// kUnsupported in a child that was forked after a device was opened.
  [[nodiscard]] Status usable() const;
  [[nodiscard]] Result<int> device_count();
  [[nodiscard]] Result<OpenDevice> open(int ordinal);
  /// The open devices, by ordinal. Empty in a forked child.
  [[nodiscard]] std::vector<OpenDevice> devices() const;

  /// Gives `peer` access to the regions of `ordinal`, now or when that device is opened.
  Status grant_peer(int ordinal, int peer);

  /// Makes a resident region with the tag and policy of `scope`. Checks the margin.
  [[nodiscard]] Result<arena::RegionInfo> allocate(int ordinal, const Scope& scope, Bytes size);
  /// The region that holds `address`, on any device. kNotFound in a forked child.
  [[nodiscard]] Result<Place> find(const void* address) const;
  /// As find(), but returns nullopt on a miss and builds no message. Every free of other memory
  /// calls it.
  [[nodiscard]] std::optional<Place> look_up(const void* address) const;
  /// Whether free() keeps the pages in the store or releases them to the driver.
  enum class Pages { kKeep, kRelease };
  /// Waits until the stream no longer uses the region. Does nothing after exit has begun.
  Status wait_for(const Place& place, device::StreamId stream);
  /// Frees the region. Unless it is paused, first waits for the device's work.
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
    std::vector<std::pair<int, std::uint64_t>> registered;  ///< device, and the id in its arena
  };
  static constexpr int kMostDevices = 64;

  std::array<std::atomic<Slot*>, kMostDevices> slots_{};
  std::atomic<bool> forked_{false};
  static inline std::atomic<bool> exiting_{false};
  std::atomic<std::uint64_t> margin_{0};
  mutable std::mutex mutex_;  ///< guards opening, settings, listeners and grants
  Settings settings_;
  std::vector<Listener> listeners_;
  std::uint64_t next_listener_ = 1;
  std::vector<std::pair<int, int>> grants_;  ///< device and peer, for devices that are not open
};

/// The initial settings of the process, from the environment, as initial_scope().
[[nodiscard]] Settings initial_settings();

/// Opens one device as NEAP_HOOK_DEVICE says: "cuda" (the default) or "host:SIZE[xCOUNT]".
[[nodiscard]] Result<std::unique_ptr<device::Device>> open_device(int ordinal);
[[nodiscard]] Result<int> count_devices();

}  // namespace neap::hook
