// Counting versions of optimizer operations: norms, fused steps, stochastic rounding.
#include <algorithm>

#include "step/counting/counting_ops.h"

namespace neap::step {
namespace {

// Fractions of the memory throughput (an H100; bench/results/kernel-times-h100.jsonl).
constexpr double kNormOfShare = 0.6, kFusedShare = 0.88;

}  // namespace

CountedTensor CountingOps::norm_of(const CountedTensor& a) {
  add_traffic(bytes(a), kNormOfShare);
  CountedTensor out = make({}, wide(a.dtype()));
  if (profile().cuda) reduction_scratch(row_sum_scratch(1, a.shape().elements(), profile().device));
  return out;
}
void CountingOps::fused_adamw_(const CountedTensor& x, const CountedTensor& g,
                               const CountedTensor& average, const CountedTensor& square,
                               const CountedTensor&, double, const spec::OptimizerConfig&) {
  add_traffic(2 * (bytes(x) + bytes(average) + bytes(square)) + bytes(g), kFusedShare);
}
void CountingOps::own_adamw_(const AdamWTensors<CountedTensor>& t, double, std::int64_t, double,
                             const spec::OptimizerConfig&) {
  const double copy = t.copy.defined() ? bytes(t.copy) : 0;
  add_traffic(2 * (bytes(t.x) + bytes(t.average) + bytes(t.square)) + bytes(t.gradient) + copy,
              kFusedShare);
}
void CountingOps::fused_sgd_(const CountedTensor& x, const CountedTensor& g,
                             const CountedTensor& momentum, double, const spec::OptimizerConfig&) {
  add_traffic(2 * (bytes(x) + bytes(momentum)) + bytes(g));
}
CountedTensor CountingOps::rounding_noise(std::uint64_t, std::int64_t n) {
  CountedTensor out = make({n}, Dtype::kFloat32);  // same size as int32
  if (profile().cuda) touch(n, Dtype::kFloat32);
  add_traffic(bytes(out));
  return out;
}
void CountingOps::round_stochastically_(const CountedTensor& to, const CountedTensor& value,
                                        const CountedTensor&, std::uint64_t, std::int64_t first) {
  add_traffic(bytes(to) + bytes(value));
  if (!profile().cuda) return;
  const std::int64_t end = first + to.shape().elements();
  for (std::int64_t at = first; at < end;) {
    const std::int64_t next = std::min(end, (at / kNoise + 1) * kNoise);
    touch(next - at, Dtype::kFloat32);
    at = next;
  }
}

}  // namespace neap::step
