// Buckets of replicated gradients, which are reduced over ranks while backward continues.
//
// Model     Backward completes the head's gradients, then those of the blocks from last to first,
//           then the embedding's. In the last group of a mini-batch, each unit is passed on when it
//           is complete; the remaining ones follow in the same order. Small units share a bucket.
//           So every rank reduces the same buckets in the same order, whatever its groups are, even
//           if it has none. Offloaded gradients are reduced one by one before they leave the
//           device, and are waited for, also in the same order on every rank.
// Threads   one at a time.
// Failure   that of the reduction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "step/units/trained_unit.h"
#include "step/units/units.h"

namespace neap::step {

/// Bucket size in bytes. A collective of this size takes several times as long as its start.
constexpr std::int64_t kReductionBytes = std::int64_t{16} << 20;

template <class T>
class GradientReduction final : public GradientSink<T> {
 public:
  /// Called as begin(unit numbers): reduces their gradients over ranks, immediately or while
  /// backward continues.
  using Begin = std::function<void(const std::vector<std::size_t>& units)>;
  /// Called as sum(unit, gradients) for a unit with offloaded gradients, while they are on the
  /// device. Later computation waits for it.
  using Sum = std::function<void(std::size_t unit, const T& gradients)>;
  /// `units` and `pieces` (those that this rank updates) must outlive it. Gradients have
  /// `element_bytes` per element. A bucket is passed on at `together` bytes.
  GradientReduction(const std::vector<TrainedUnit<T>>& units,
                    const std::vector<TrainedUnit<T>>& pieces, std::int64_t element_bytes,
                    Begin begin, Sum sum, std::int64_t together = kReductionBytes)
      : begin_(std::move(begin)), sum_(std::move(sum)), together_(together) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      const TrainedUnit<T>& unit = units[u];
      if (unit.on_host) {
        const auto own = std::find_if(pieces.begin(), pieces.end(), [&](const TrainedUnit<T>& p) {
          return p.index == unit.index;
        });
        typename GradientSink<T>::Leaving leaving{&unit.unit};
        if (own != pieces.end()) {
          leaving.first = own->first;
          leaving.count = own->weights.size(0);
        }
        leaving_.emplace(key_of(unit.unit), std::pair(u, leaving));
      } else if (unit.gradients.defined()) {
        order_.push_back({u, key_of(unit.unit), unit.unit.elements * element_bytes});
      }
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [](const Unit& a, const Unit& b) { return turn_of(a.key) < turn_of(b.key); });
  }

  void begin_group(bool last) override { last_group_ = last; }
  [[nodiscard]] bool takes_groups() const override { return false; }
  [[nodiscard]] std::vector<T> new_gradients(UnitKey) override { return {}; }
  void take(UnitKey key) override {
    if (!last_group_) return;
    while (next_ < order_.size() && order_[next_].key == key) add_next();
  }
  void end_group() override {}
  [[nodiscard]] typename GradientSink<T>::Leaving leaving(UnitKey key) const override {
    return leaving_.at(key).second;
  }
  void sum(UnitKey key, const T& gradients) override { sum_(leaving_.at(key).first, gradients); }

  /// Passes on the rest of a mini-batch, and starts the next one.
  void finish() {
    while (next_ < order_.size()) add_next();
    hand_over();
    restart();
  }
  /// Forgets what was passed on in this mini-batch.
  void restart() {
    next_ = 0;
    pending_.clear();
    pending_bytes_ = 0;
    last_group_ = false;
  }

 private:
  struct Unit {
    std::size_t number = 0;
    UnitKey key = 0;
    std::int64_t bytes = 0;
  };
  // Backward reaches units in ascending order of this value.
  static UnitKey turn_of(UnitKey key) {
    if (key == key_of(Table::kHead)) return std::numeric_limits<UnitKey>::min();
    return key == key_of(Table::kEmbedding) ? std::numeric_limits<UnitKey>::max() : -key;
  }
  void add_next() {
    const Unit& unit = order_[next_++];
    pending_.push_back(unit.number);
    pending_bytes_ += unit.bytes;
    if (pending_bytes_ >= together_) hand_over();
  }
  void hand_over() {
    if (pending_.empty()) return;
    pending_bytes_ = 0;
    begin_(std::exchange(pending_, {}));
  }

  Begin begin_;
  Sum sum_;
  std::int64_t together_;
  std::map<UnitKey, std::pair<std::size_t, typename GradientSink<T>::Leaving>> leaving_;
  std::vector<Unit> order_;
  std::size_t next_ = 0;  // index into order_
  std::vector<std::size_t> pending_;
  std::int64_t pending_bytes_ = 0;
  bool last_group_ = false;
};

}  // namespace neap::step
