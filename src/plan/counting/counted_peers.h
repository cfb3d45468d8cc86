// Simulates the reduction of gradients over ranks, and how much of it overlaps with backward.
//
// Threads   one.
// Cost      below a microsecond per unit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "spec/types/data_parallel.h"
#include "spec/types/mesh.h"
#include "step/counting/counting_ops.h"
#include "step/units/gradient_reduction.h"

namespace neap::plan {

[[nodiscard]] inline double bytes_of(std::int64_t elements, spec::Dtype dtype) {
  return static_cast<double>(spec::tensor_bytes(elements, dtype).count());
}

/// An all-gather over a shard group that is waited for.
inline void gather_at_once(step::CountingOps& ops, const spec::DataParallel& ranks, double bytes) {
  const double sent = step::gathered_bytes(ranks.shards(), bytes);
  ops.wait_for_peers(ops.now() + ops.peer_seconds(sent, 1, spec::Axis::kShards), sent);
}

/// An all-reduce of shards over replicas that is waited for.
inline void sum_over_replicas(step::CountingOps& ops, const spec::DataParallel& ranks,
                              double bytes) {
  if (ranks.replicas == 1 || bytes == 0) return;
  const double sent = 2 * step::gathered_bytes(ranks.replicas, bytes);
  ops.wait_for_peers(ops.now() + ops.peer_seconds(sent, 2, spec::Axis::kReplicas), sent);
}

/// Reductions that overlap with computation. On the CPU they do not overlap.
class CountedPeers final : public step::GradientSink<step::CountedTensor> {
  using T = step::CountedTensor;

 public:
  /// `ops` and the units must outlive it.
  CountedPeers(step::CountingOps& ops, const spec::DataParallel& ranks,
               const std::vector<step::TrainedUnit<T>>& units,
               const std::vector<step::TrainedUnit<T>>& pieces, std::int64_t element_bytes)
      : ops_(ops),
        ranks_(ranks),
        units_(units),
        reduction_(
            units, pieces, element_bytes,
            [this](const std::vector<std::size_t>& bucket) {
              double bytes = 0;
              for (const std::size_t u : bucket) bytes += step::bytes(units_[u].gradients);
              begin(bytes);
            },
            [this](std::size_t unit, const T& gradients) {
              left_.insert(unit);
              sum_at_once(step::bytes(gradients));
            }) {}
  CountedPeers(const CountedPeers&) = delete;
  CountedPeers& operator=(const CountedPeers&) = delete;

  // A plan skips equal groups, so each group may be the last one.
  void begin_group(bool) override {
    reduction_.restart();
    reduction_.begin_group(true);
    lane_ = busy_ = sent_ = 0;
    left_.clear();
  }
  [[nodiscard]] bool takes_groups() const override { return reduction_.takes_groups(); }
  [[nodiscard]] std::vector<T> new_gradients(step::UnitKey unit) override {
    return reduction_.new_gradients(unit);
  }
  void take(step::UnitKey unit) override { reduction_.take(unit); }
  void end_group() override { reduction_.end_group(); }
  [[nodiscard]] Leaving leaving(step::UnitKey unit) const override {
    return reduction_.leaving(unit);
  }
  void sum(step::UnitKey unit, const T& gradients) override { reduction_.sum(unit, gradients); }

  /// The rest of a mini-batch; later computation waits for it. If the plan skipped the last group,
  /// offloaded units are part of the rest.
  void finish() {
    reduction_.finish();
    ops_.wait_for_peers(ops_.profile().cuda ? lane_ : ops_.now() + busy_, sent_);
    lane_ = busy_ = sent_ = 0;
    for (std::size_t u = 0; u < units_.size(); ++u)
      if (units_[u].on_host && !left_.contains(u)) sum_at_once(step::bytes(units_[u].gradients));
    left_.clear();
  }

 private:
  // Bytes and seconds of a reduction.
  struct Sum {
    double sent = 0, seconds = 0;
  };
  [[nodiscard]] Sum sum_of(double bytes) const {
    if (ranks_.ranks == 1) return {};
    const bool parts = ranks_.slices_states();
    const double sent = (parts ? 1 : 2) * step::gathered_bytes(ranks_.shards(), bytes);
    return {sent, ops_.peer_seconds(sent, parts ? 1 : 2, spec::Axis::kShards)};
  }
  void begin(double bytes) {
    const Sum sum = sum_of(bytes);
    lane_ = std::max(lane_, ops_.now()) + sum.seconds;
    busy_ += sum.seconds;
    sent_ += sum.sent;
  }
  void sum_at_once(double bytes) {
    const Sum sum = sum_of(bytes);
    const double begun = ops_.profile().cuda ? std::max(lane_, ops_.now()) : ops_.now();
    ops_.wait_for_peers(begun + sum.seconds, sum.sent);
    lane_ = std::max(lane_, begun + sum.seconds);
  }

  step::CountingOps& ops_;
  spec::DataParallel ranks_;
  const std::vector<step::TrainedUnit<T>>& units_;
  step::GradientReduction<T> reduction_;
  // For the mini-batch: when the communication queue ends, its busy seconds, and its bytes.
  double lane_ = 0, busy_ = 0, sent_ = 0;
  std::set<std::size_t> left_;  // units that were reduced before they were offloaded
};

}  // namespace neap::plan
