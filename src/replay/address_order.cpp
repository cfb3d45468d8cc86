#include "replay/address_order.h"

#include <algorithm>

#include "base/format.h"

namespace neap::replay {
namespace {

using cache::Address;
using Kind = AddressOrder::Kind;

constexpr std::uint64_t kChunk = (32_MiB).count();
constexpr std::uint64_t kSegmentAlignment = (2_MiB).count();
/// First address of random and monotone orders without other segments: the middle of a 47-bit
/// address space.
constexpr Address kMiddle = 0x400000000000;
/// Percentage of new segments at addresses that were freed before; 40 to 85 % measured on an H200.
constexpr std::uint64_t kHolePercent = 65;

/// Adds a range to disjoint ranges and merges it with its neighbours.
void join(std::map<Address, std::uint64_t>& ranges, Address at, std::uint64_t size) {
  auto next = ranges.lower_bound(at);
  if (next != ranges.end() && at + size == next->first) {
    size += next->second;
    next = ranges.erase(next);
  }
  if (next != ranges.begin() && std::prev(next)->first + std::prev(next)->second == at)
    std::prev(next)->second += size;
  else
    ranges.emplace_hint(next, at, size);
}

}  // namespace

std::string to_string(const AddressOrder& order) {
  switch (order.kind) {
    case Kind::kRecorded:
      return "recorded";
    case Kind::kRecordedReused:
      return "recorded, reused";
    case Kind::kLowestHole:
      return "lowest hole";
    case Kind::kAscending:
      return "ascending";
    case Kind::kDescending:
      return "descending";
    case Kind::kHoles:
      return format("random holes {}", order.seed);
    case Kind::kUniform:
      break;
  }
  return format("random {}", order.seed);
}

std::vector<AddressOrder> address_orders(std::size_t count) {
  std::vector<AddressOrder> orders = {{Kind::kRecorded},
                                      {Kind::kRecordedReused},
                                      {Kind::kLowestHole},
                                      {Kind::kDescending},
                                      {Kind::kAscending}};
  for (std::uint64_t seed = 1; orders.size() < count; ++seed)
    orders.push_back({seed % 2 == 1 ? Kind::kHoles : Kind::kUniform, seed});
  orders.resize(std::max<std::size_t>(count, 1));
  return orders;
}

OrderedSource::OrderedSource(Bytes capacity, const AddressOrder& order, const Workload& workload)
    : TimedSource(capacity), order_(order), random_(order.seed), low_(kMiddle), high_(kMiddle) {
  if (order.kind != Kind::kRecorded && order.kind != Kind::kRecordedReused) return;
  queue_recorded(workload);
  if (recorded_.empty()) order_.kind = Kind::kDescending;
}

void OrderedSource::queue_recorded(const Workload& workload) {
  for (const trace::Event& event : workload.device->events) {
    if (event.kind != trace::EventKind::kSegmentAlloc) continue;
    const auto number = static_cast<std::uint32_t>(recorded_.size());
    SameSize& same_size = by_size_[event.size];
    // An address that the recording used twice for this size can be reused once.
    if (order_.kind == Kind::kRecordedReused && same_size.number.contains(event.address)) continue;
    same_size.unused.insert(same_size.unused.end(), number);
    same_size.number[event.address] = number;
    recorded_.push_back({event.address, event.size});
  }
  if (recorded_.empty()) return;
  if (order_.kind == Kind::kRecorded)
    chunk_end_ = recorded_.front().address;  // place_at moves it down
  else
    keep_below_recorded();
}

/// Places new chunks below every recorded address.
void OrderedSource::keep_below_recorded() {
  for (const Recorded& recorded : recorded_)
    chunk_end_ = std::min(chunk_end_, recorded.address / kChunk * kChunk);
}

bool OrderedSource::is_free(Address at, Bytes length) const {
  const auto next = live_.lower_bound(at);
  if (next != live_.end() && next->first < at + length.count()) return false;
  return next == live_.begin() || std::prev(next)->first + std::prev(next)->second <= at;
}

/// The next recorded address while the run follows the recording.
std::optional<Address> OrderedSource::follow(Bytes length) {
  if (followed_ == recorded_.size() || recorded_[followed_].size != length.count() ||
      !is_free(recorded_[followed_].address, length)) {
    mode_ = Mode::kHoles;
    live_.clear();  // from here on SimSource tracks the holes
    return std::nullopt;
  }
  const Address at = recorded_[followed_].address;
  by_size_[length.count()].unused.erase(static_cast<std::uint32_t>(followed_++));
  const auto above = live_.upper_bound(at);
  place_at(at, length, above == live_.end() ? ~Address{0} : above->first);
  return at;
}

std::optional<Address> OrderedSource::unused_of_size(Bytes length) {
  const auto found = by_size_.find(length.count());
  if (found == by_size_.end()) return std::nullopt;
  auto& unused = found->second.unused;
  // An address may currently be inside a segment of another size. After a few tries a new address
  // is cheaper.
  constexpr int kTries = 16;
  int tried = 0;
  for (auto at = unused.begin(); at != unused.end() && tried < kTries; ++at, ++tried) {
    const Address address = recorded_[*at].address;
    if (!is_free(address, length)) continue;
    unused.erase(at);
    return address;
  }
  return std::nullopt;
}

Address OrderedSource::place_in_hole(Bytes length) {
  if (random_() % 100 < kHolePercent) {
    std::vector<Address> fitting;
    for (const auto& [at, size] : holes_)
      if (size >= length.count()) fitting.push_back(at);
    if (!fitting.empty()) {
      const auto hole = holes_.find(fitting[random_() % fitting.size()]);
      const auto [at, size] = *hole;
      holes_.erase(hole);
      if (size > length.count()) holes_.emplace(at + length.count(), size - length.count());
      return at;
    }
  }
  // In the recorded calls, three of four new ranges are below the others.
  if (random_() % 4 != 0) return low_ -= length.count();
  high_ += length.count();
  return high_ - length.count();
}

Address OrderedSource::place_anywhere(Bytes length) {
  constexpr std::uint64_t kSlots = 1ull << 23;
  constexpr int kTries = 64;
  const Address lowest = low_ - kSlots / 2 * kSegmentAlignment;
  for (int i = 0; i < kTries; ++i) {
    const Address at = lowest + random_() % kSlots * kSegmentAlignment;
    if (is_free(at, length)) return at;
  }
  // Nearly full, which needs terabytes of live segments: place it above all of them.
  const auto last = std::prev(live_.end());
  return last->first + last->second;
}

Address OrderedSource::place(Bytes length) {
  Address at = 0;
  switch (order_.kind) {
    case Kind::kLowestHole:
      return TimedSource::place(length);
    case Kind::kRecorded:
    case Kind::kRecordedReused: {
      std::optional<Address> recorded;
      if (order_.kind == Kind::kRecorded && mode_ == Mode::kFollow)
        recorded = follow(length);
      else if (mode_ != Mode::kHoles)
        recorded = unused_of_size(length);
      if (!recorded) return TimedSource::place(length);
      at = *recorded;
      break;
    }
    case Kind::kAscending:
      at = high_;
      high_ += length.count();
      break;
    case Kind::kDescending:
      at = low_ -= length.count();
      break;
    case Kind::kHoles:
      at = place_in_hole(length);
      break;
    case Kind::kUniform:
      at = place_anywhere(length);
      break;
  }
  live_[at] = length.count();
  return at;
}

void OrderedSource::vacate(Address at, Bytes length) {
  released_ = true;
  if (order_.kind == Kind::kRecorded && mode_ == Mode::kFollow) {
    mode_ = Mode::kSizes;
    forget_holes();  // recorded addresses are in the holes
    keep_below_recorded();
  }
  const auto found = live_.find(at);
  if (found == live_.end() || order_.kind == Kind::kLowestHole) {
    TimedSource::vacate(at, length);
    return;
  }
  live_.erase(found);
  if (order_.kind == Kind::kHoles) join(holes_, at, length.count());
  if (order_.kind != Kind::kRecordedReused) return;
  if (const auto size = by_size_.find(length.count()); size != by_size_.end())
    if (const auto number = size->second.number.find(at); number != size->second.number.end())
      size->second.unused.insert(number->second);
}

}  // namespace neap::replay
