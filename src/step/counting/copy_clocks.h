// Simulated clocks of copies between device and host, which overlap with computation.
//
// Each direction is a queue: a copy starts when the one before has ended and its inputs are ready.
// If the other direction is known to be busy, both are slower. Overlap follows from the times at
// which queues and computation wait for each other.
//
// Times     seconds since a phase's start; each simulated round of a loop counts once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace neap::step {

/// Bytes per second between device and host. Zeros mean that no time is counted.
struct LinkRates {
  double to_device = 0, to_host = 0;
  double both = 0;  ///< both directions together
};

enum class Direction : std::uint8_t { kToDevice, kToHost };

class CopyClocks {
 public:
  explicit CopyClocks(const LinkRates& rates) : rates_(rates) {}
  /// Starts a copy at `from` or later. Returns when it ends.
  double copy(Direction direction, double bytes, double from) {
    const double full = direction == Direction::kToDevice ? rates_.to_device : rates_.to_host;
    double& lane = ends_[index(direction)];
    lane = std::max(lane, from);
    if (full <= 0 || bytes <= 0) return lane;
    const double shared = std::min(full, rates_.both / 2);
    const double busy = ends_[1 - index(direction)] - lane;
    const double together = std::clamp(busy, 0.0, bytes / shared);
    return lane += together + (bytes - together * shared) / full;
  }
  /// When the last copy of either direction ends.
  [[nodiscard]] double end() const { return std::max(ends_[0], ends_[1]); }

 private:
  static std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }
  LinkRates rates_;
  std::array<double, 2> ends_{};
};

}  // namespace neap::step
