// Clocks of copies between the device and the host, which run beside what the device computes.
//
// Each direction is a lane: its copies run in order, each when the one before has ended and what it waits for
// is there. Where the other lane is known to be busy both are slower. What hides behind what follows from
// the times that lanes and computing wait for each other.
//
// Times   seconds from a phase's start on which each round of a loop that is run counts once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace neap::step {

/// Bytes a second between the device and the host. With zeros no seconds are counted.
struct LinkRates {
  double to_device = 0, to_host = 0;
  double both = 0;  ///< the sum of both directions at once
};

enum class Direction : std::uint8_t { kToDevice, kToHost };

class CopyClocks {
 public:
  explicit CopyClocks(const LinkRates& rates) : rates_(rates) {}
  /// Begins at `from` or later. When it has ended.
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
  /// When the last copy of either has ended.
  [[nodiscard]] double end() const { return std::max(ends_[0], ends_[1]); }

 private:
  static std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }
  LinkRates rates_;
  std::array<double, 2> ends_{};
};

}  // namespace neap::step
