// Address orders: where a simulated driver places new segments.
//
// Why       Best fit chooses between equally large free blocks by address, so the addresses of new
//           segments can affect the reserved memory of a run. The CUDA driver's choice after a
//           release is unknown: on an H200, no simple rule predicts even a fifth of the addresses.
//           What-if therefore replays a scenario under several orders and reports the range.
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

/// kRecorded is the best estimate and follows the recorded run. As long as sizes match the
/// recording, segments get the recorded addresses. After a segment was freed, segments get each
/// recorded address of their size once, in the recorded order. After a different size, or without
/// unused addresses, a rule decides that held on an H200 until the first release. It takes the
/// lowest hole that fits, otherwise a new 32 MiB chunk below the others. Recordings without
/// ordinary segments use kDescending.
struct AddressOrder {
  enum class Kind {
    kRecorded,        ///< see above
    kRecordedReused,  ///< as kRecorded, but reuses an address after its segment is freed
    kLowestHole,      ///< the lowest hole that fits, otherwise a new 32 MiB chunk below the others
    kAscending,       ///< above all earlier segments
    kDescending,      ///< below all earlier segments
    kHoles,           ///< random: often a hole, otherwise below or above
    kUniform,         ///< random: anywhere
  };
  Kind kind = Kind::kRecorded;
  std::uint64_t seed = 0;  ///< seed of the random kinds
};

[[nodiscard]] std::string to_string(const AddressOrder& order);

/// Returns `count` orders, at least 1. The first is the best estimate.
[[nodiscard]] std::vector<AddressOrder> address_orders(std::size_t count);
inline constexpr std::size_t kDefaultAddressOrders = 12;

/// A simulated device that places ordinary segments in a given order. Expandable reservations are
/// placed by SimSource, because blocks of two reservations rarely compete.
class OrderedSource : public TimedSource {
 public:
  OrderedSource(Bytes capacity, const AddressOrder& order, const Workload& workload);

  /// Whether an ordinary segment was freed. Before that the driver's addresses do not matter: under
  /// every order seen on a GPU, runs that only grow have the same peak.
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
  /// Segments of one size: usable indexes in recorded_, and the index of each address.
  struct SameSize {
    std::set<std::uint32_t> unused;
    std::map<cache::Address, std::uint32_t> number;
  };
  std::map<std::uint64_t, SameSize> by_size_;
  /// kRecorded follows the recording until a size differs (kHoles) or a segment is freed (kSizes).
  enum class Mode { kFollow, kSizes, kHoles } mode_ = Mode::kFollow;
  std::size_t followed_ = 0;
  Ranges live_;
  Ranges holes_;
  cache::Address low_ = 0;   ///< lower bound of all segments
  cache::Address high_ = 0;  ///< upper bound of all segments
  bool released_ = false;
};

}  // namespace neap::replay
