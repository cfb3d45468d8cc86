// The sums of gradients over ranks in a plan, on the clock of what is computed: how much of them backward hides.
//
// Threads   one.
// Cost      below a microsecond a unit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/data_parallel.h"
#include "spec/mesh.h"
#include "step/counting_ops.h"
#include "step/gradient_reduction.h"

namespace neap::plan {

/// Bytes that each of so many ranks sends so that a tensor is gathered or, the other way, its parts are summed: as a
/// ring.
[[nodiscard]] inline double gathered_bytes(std::int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return (n - 1) / n * bytes;
}

/// A gather of a tensor from ranks that slice it, which is waited for.
inline void gather_at_once(step::CountingOps& ops, const spec::DataParallel& ranks, double bytes) {
  const double sent = gathered_bytes(ranks.shards(), bytes);
  ops.wait_for_peers(ops.now() + ops.peer_seconds(sent, 1, spec::Axis::kShards), sent);
}

/// The sums of slices over their replicas, which are waited for.
inline void sum_over_replicas(step::CountingOps& ops, const spec::DataParallel& ranks,
                              double bytes) {
  if (ranks.replicas == 1 || bytes == 0) return;
  const double sent = 2 * gathered_bytes(ranks.replicas, bytes);
  ops.wait_for_peers(ops.now() + ops.peer_seconds(sent, 2, spec::Axis::kReplicas), sent);
}

/// Sums that run while the device computes. On the host they are made at once.
class CountedPeers final : public step::GradientSink<step::CountedTensor> {
  using T = step::CountedTensor;

 public:
  /// `ops` outlives it.
  CountedPeers(step::CountingOps& ops, const spec::DataParallel& ranks,
               const std::vector<step::TrainedUnit<T>>& units, std::int64_t element_bytes)
      : ops_(ops),
        ranks_(ranks),
        reduction_(units, element_bytes, [this, &units](const std::vector<std::size_t>& bucket) {
          double bytes = 0;
          for (const std::size_t u : bucket) bytes += step::bytes(units[u].gradients);
          begin(bytes);
        }) {}
  CountedPeers(const CountedPeers&) = delete;
  CountedPeers& operator=(const CountedPeers&) = delete;

  // A plan leaves out groups that are alike: each may be the last one that runs.
  void begin_group(bool) override {
    reduction_.restart();
    reduction_.begin_group(true);
    lane_ = busy_ = sent_ = 0;
  }
  [[nodiscard]] bool takes_groups() const override { return reduction_.takes_groups(); }
  [[nodiscard]] std::vector<T> new_gradients(step::UnitKey unit) override {
    return reduction_.new_gradients(unit);
  }
  void take(step::UnitKey unit) override { reduction_.take(unit); }

  /// The rest of a mini-batch; what is computed next waits for all of it.
  void finish() {
    reduction_.finish();
    ops_.wait_for_peers(ops_.profile().cuda ? lane_ : ops_.now() + busy_, sent_);
    lane_ = busy_ = sent_ = 0;
  }

 private:
  void begin(double bytes) {
    const double gathered = gathered_bytes(ranks_.shards(), bytes);
    const double sent = ranks_.slices_states() ? gathered : 2 * gathered;
    const double seconds =
        ops_.peer_seconds(sent, ranks_.slices_states() ? 1 : 2, spec::Axis::kShards);
    lane_ = std::max(lane_, ops_.now()) + seconds;
    busy_ += seconds;
    sent_ += sent;
  }

  step::CountingOps& ops_;
  spec::DataParallel ranks_;
  step::GradientReduction<T> reduction_;
  // Of the mini-batch: when the lane is done, its seconds and what it has sent.
  double lane_ = 0, busy_ = 0, sent_ = 0;
};

}  // namespace neap::plan
