#include "step/counting/work_meter.h"

#include <bit>
#include <cmath>

#include "step/counting/kernel_seconds.h"

namespace neap::step {
namespace {

// Launching a matrix product takes this multiple of the launch time that `neap doctor` measures.
// Fitted to decoding of 1.5B with and without LoRA, and of 7B, on two machines with H100s
// (2026-11-26).
constexpr double kProductIssues = 1.2;
// Additional seconds per kernel of a CUDA graph, and host launches per graph. Fitted to graphs of
// four models with 1 to 64 sequences (an H100; bench/results/engine-graphs-h100.jsonl).
constexpr double kGraphKernelSeconds = 0.8e-6;
constexpr double kGraphIssues = 2;

}  // namespace

void WorkMeter::add_work(double flops, double bytes_moved, double seconds, double issues) {
  if (in_graph_) {
    kernels_ += weight_;
    seconds += kGraphKernelSeconds;
    issues = 0;
  }
  work_.flops += weight_ * flops;
  work_.bytes_moved += weight_ * bytes_moved;
  const KernelRates& rates = profile_.rates;
  if (rates.bytes <= 0) return;
  work_.seconds += weight_ * seconds;
  work_.issue_seconds += weight_ * issues * rates.issue_seconds;
  computed_seconds_ += seconds;
  issued_seconds_ += issues * rates.issue_seconds;
}
void WorkMeter::add_traffic(double bytes_moved, double share) {
  add_work(0, bytes_moved, traffic_seconds(profile_.rates, bytes_moved, share));
}
double WorkMeter::seconds_of_product(double rate, double flops, double bytes, double sum_bytes) {
  constexpr std::uint64_t kMix = 0x9e3779b97f4a7c15;
  const Product product{rate, flops, bytes, sum_bytes};
  const std::uint64_t mixed =
      (std::bit_cast<std::uint64_t>(flops) * kMix ^ std::bit_cast<std::uint64_t>(bytes)) * kMix;
  KnownProduct& known = products_[mixed >> 58];
  if (known.product != product)
    known = {product, product_seconds(profile_.rates, rate, flops, bytes, sum_bytes)};
  return known.seconds;
}
void WorkMeter::add_product(double flops, double bytes_moved, double sum_bytes, Dtype dtype) {
  add_work(flops, bytes_moved + 2 * sum_bytes,
           seconds_of_product(product_rate(dtype), flops, bytes_moved, sum_bytes), kProductIssues);
}
void WorkMeter::add_fp8_product(double flops, double bytes_moved) {
  add_work(flops, bytes_moved,
           product_seconds(profile_.rates, profile_.rates.fp8_flops, flops, bytes_moved, 0),
           kProductIssues);
}
void WorkMeter::add_kernel(double flops, double bytes_moved, Dtype dtype, double share) {
  const KernelRates& rates = profile_.rates;
  add_work(flops, bytes_moved,
           rates.operation_seconds +
               std::max(bytes_moved / rates.bytes, flops / (share * product_rate(dtype))));
}

// The device waits for launches of small operations, and the host waits at the token's end for the
// rest of large ones. The time is between the maximum of both and their sum. Measured decoding of
// 1.5B and 7B is close to the root of the sum of squares.
void WorkMeter::take_in_turns(const Work& start) {
  const double both =
      std::hypot(work_.seconds - start.seconds, work_.issue_seconds - start.issue_seconds);
  work_.seconds = start.seconds + both;
  work_.issue_seconds = start.issue_seconds + both;
}

void WorkMeter::launch_graph(const Work& body) {
  work_.flops += weight_ * body.flops;
  work_.bytes_moved += weight_ * body.bytes_moved;
  work_.seconds += weight_ * body.seconds;
  const double launched = kGraphIssues * profile_.rates.issue_seconds;
  work_.issue_seconds += weight_ * launched;
  issued_seconds_ += launched;
}

double WorkMeter::begin_copy(Direction direction, double bytes, double from) {
  (direction == Direction::kToDevice ? work_.fetched_bytes : work_.stored_bytes) += weight_ * bytes;
  return copies_.copy(direction, bytes, from);
}

double WorkMeter::begin_disk(Direction direction, double bytes, double from) {
  (direction == Direction::kToDevice ? work_.disk_read : work_.disk_written) += weight_ * bytes;
  // Its reads and writes share one throughput.
  return disk_.copy(direction, bytes, std::max(from, disk_.end()));
}

double WorkMeter::advance_to(double time) {
  const double now = this->now();
  clock_ = std::max(now, time);
  computed_seconds_ = issued_seconds_ = 0;
  return clock_ - now;
}

void WorkMeter::wait_until(double time) {
  work_.wait_seconds += weight_ * advance_to(time);
}

void WorkMeter::wait_for_peers(double time, double sent, spec::Axis axis) {
  work_.peer_bytes += weight_ * sent;
  const double waited = weight_ * advance_to(time);
  work_.peer_seconds += waited;
  work_.axis_seconds.at(static_cast<std::size_t>(axis)) += waited;
}

void WorkMeter::copy_at_once(Direction direction, double bytes) {
  if (profile_.cuda) wait_until(copies_.copy(direction, bytes, now()));
}

void WorkMeter::add_peer_work(double sent, spec::Axis axis, double rounds) {
  work_.peer_bytes += weight_ * sent;
  const double seconds = peer_seconds(sent, rounds, axis);
  work_.peer_seconds += weight_ * seconds;
  work_.axis_seconds.at(static_cast<std::size_t>(axis)) += weight_ * seconds;
  computed_seconds_ += seconds;
  issued_seconds_ += seconds;
}

}  // namespace neap::step
