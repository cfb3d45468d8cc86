// Address orders: where a simulated driver places new segments.
//
// Why       Best fit breaks ties between equally large free blocks by address, so the addresses of
//           new segments can decide what a run reserves. After a release, the CUDA driver's choice
//           is unknown: on an H200, no simple rule predicts a fifth of the addresses. What-if
//           therefore replays a scenario under several orders and reports the range.
//
// Threads   one source per replay.
//
// Cost      O(log n) per segment; kHoles is linear in the number of holes.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "replay/driver_time.h"
#include "replay/workload.h"

namespace neap::replay {

/// kRecorded, the best estimate, follows the recorded run. While the sizes are the recorded ones,
/// segments get the recorded addresses. When a segment was freed, they get each recorded address of
/// their size once, in the recorded order. When another size came first, or when no address is
/// left, the rule that held on an H200 until the first release decides: the lowest hole that fits,
/// otherwise a new 32 MiB chunk below the others. Recordings without ordinary segments: kDescending.
struct AddressOrder {
  enum class Kind {
    kRecorded,        ///< see above
    kRecordedReused,  ///< each recorded address of that size, again after its segment is freed
    kLowestHole,      ///< the lowest hole that fits, otherwise a new 32 MiB chunk below the others
    kAscending,       ///< above all earlier segments
    kDescending,      ///< below all earlier segments
    kHoles,           ///< random: often a hole, otherwise below or above
    kUniform,         ///< random: anywhere
  };
  Kind kind = Kind::kRecorded;
  std::uint64_t seed = 0;  ///< of the random kinds
};

[[nodiscard]] std::string to_string(const AddressOrder& order);

/// The first is the best estimate. `count` is at least 1.
[[nodiscard]] std::vector<AddressOrder> address_orders(std::size_t count);
inline constexpr std::size_t kDefaultAddressOrders = 12;

/// A simulated device that places ordinary segments in a given order. Expandable reservations keep
/// the placement of SimSource: blocks of two reservations rarely compete.
class OrderedSource : public TimedSource {
 public:
  OrderedSource(Bytes capacity, const AddressOrder& order, const Workload& workload);

  /// Whether an ordinary segment was freed. Before that, the driver's addresses do not
  /// matter: runs that only grow give the same peak under every order that was seen on a GPU.
  [[nodiscard]] bool released_segments() const { return released_; }

 protected:
  cache::Address place(Bytes length) override;
  void vacate(cache::Address at, Bytes length) override;

 private:
  using Ranges = std::map<cache::Address, std::uint64_t>;

  void queue_recorded(const Workload& workload);
  void keep_below_recorded();
  [[nodiscard]] bool is_free(cache::Address at, Bytes length) const;
  [[nodiscard]] std::optional<cache::Address> follow(Bytes length);
  [[nodiscard]] std::optional<cache::Address> unused_of_size(Bytes length);
  [[nodiscard]] cache::Address place_in_hole(Bytes length);
  [[nodiscard]] cache::Address place_anywhere(Bytes length);

  AddressOrder order_;
  std::mt19937_64 random_;
  struct Recorded {
    cache::Address address = 0;
    std::uint64_t size = 0;
  };
  std::vector<Recorded> recorded_;
  /// Of one size: the numbers in recorded_ that can be used, and the number of each address.
  struct SameSize {
    std::set<std::uint32_t> unused;
    std::map<cache::Address, std::uint32_t> number;
  };
  std::map<std::uint64_t, SameSize> by_size_;
  /// kRecorded: follows the recording until a size differs (kHoles) or a segment is freed (kSizes).
  enum class Mode { kFollow, kSizes, kHoles } mode_ = Mode::kFollow;
  std::size_t followed_ = 0;
  Ranges live_;
  Ranges holes_;
  cache::Address low_ = 0;   ///< all segments are at or above it
  cache::Address high_ = 0;  ///< and below it
  bool released_ = false;
};

}  // namespace neap::replay
