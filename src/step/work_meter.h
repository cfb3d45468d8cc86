// What operations cost, added up, and when: the clock of what a device computes, with copies, a disk and other ranks
// beside it.
//
// Work of loops and of alternatives is weighted, so that a few rounds stand for all of them.
//
// Times     as of copy_clocks.h: each round of a loop that is run counts once.
// Threads   one.   Failure   none.   Cost   constant, a few nanoseconds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "spec/mesh.h"
#include "step/copy_clocks.h"
#include "step/counted_work.h"
#include "step/shape.h"

namespace neap::step {

class WorkMeter {
 public:
  [[nodiscard]] const KernelProfile& profile() const { return profile_; }
  [[nodiscard]] const Work& work() const { return work_; }
  /// body(i) for i = 0 .. n - 1; all rounds must cost the same. What a round leaves is freed by the `lasting`-th after it:
  /// so many are run, and one more, where more than one is.
  template <class Body>
  void repeat(std::int64_t n, const Body& body, std::int64_t lasting = 1) {
    const std::int64_t enough =
        counts_aside() ? std::max(most_repeats_, lasting + 1) : most_repeats_;
    const std::int64_t rounds = std::min(n, enough);
    for (std::int64_t i = 0; i < rounds; ++i)
      weighted(i + 1 < rounds ? 1 : static_cast<double>(n - i), [&] { body(i); });
  }
  /// body(), whose work counts `times` times.
  template <class Body>
  void weighted(double times, const Body& body) {
    const double outer = weight_;
    weight_ *= times;
    body();
    weight_ = outer;
  }

  /// Whether aside() runs anything.
  [[nodiscard]] bool counts_aside() const { return most_repeats_ > 1; }
  /// body(), whose work does not count; nothing where rounds are cut short to the first.
  template <class Body>
  void aside(const Body& body) {
    if (counts_aside()) weighted(0, body);
  }

  /// body(), which makes a token that the program waits for: starts of operations hide little of what the device computes.
  template <class Body>
  auto one_token(const Body& body) {
    const Work start = work_;
    auto result = body();
    take_in_turns(start);
    return result;
  }

  // ---- copies that run while operations compute ----
  /// When what was computed so far is done.
  [[nodiscard]] double now() const { return clock_ + std::max(computed_seconds_, issued_seconds_); }
  /// Begins at `from` or later. When it has ended.
  double begin_copy(Direction direction, double bytes, double from);
  /// The same between the host and the disk: of a read `direction` is to the device.
  double begin_disk(Direction direction, double bytes, double from);
  /// What is computed from now on begins at that time or later.
  void wait_until(double time);
  /// When every copy so far has ended.
  [[nodiscard]] double copied() const { return std::max(copies_.end(), disk_.end()); }

  // ---- collectives, on the same clock ----
  /// Seconds of one over the ranks of an axis, of those that have the same part of a model if none is given, in which
  /// each sends so many bytes.
  [[nodiscard]] double peer_seconds(double sent, double rounds = 1,
                                    spec::Axis axis = spec::Axis::kData) const {
    return step::peer_seconds(profile_.peers.at(static_cast<std::size_t>(axis)), sent, rounds);
  }
  /// What is computed from now on begins at that time or later, behind such collectives of so many bytes.
  void wait_for_peers(double time, double sent, spec::Axis axis = spec::Axis::kData);

 protected:
  /// `most_repeats`: this many rounds of a repeat() are run, and the last one's work is counted for the rest.
  WorkMeter(const KernelProfile& profile, std::int64_t most_repeats)
      : profile_(profile),
        most_repeats_(most_repeats),
        copies_(profile.link),
        disk_(profile.disk) {}
  ~WorkMeter() = default;

  /// An operation that moves memory, at `share` of the device's rate.
  void add_traffic(double bytes, double share = 1);
  /// A matrix product: `bytes` of operands and result, `sum_bytes` that it adds to.
  void add_product(double flops, double bytes, double sum_bytes, Dtype dtype);
  /// A kernel that does `flops` on elements of `dtype` at `share` of the rate of products, and hides its traffic.
  void add_kernel(double flops, double bytes, Dtype dtype, double share);
  /// `issues`: of operations of libtorch that take as long to be started.
  void add_work(double flops, double bytes, double seconds, double issues = 1);
  /// A collective that sends so many bytes from each rank of an axis and passes them `rounds` times.
  void add_peer_work(double sent, spec::Axis axis, double rounds = 1);
  /// A copy that operations wait for.
  void copy_at_once(Direction direction, double bytes);
  /// FLOPs a second.
  [[nodiscard]] double product_rate(Dtype dtype) const {
    return element_bytes(dtype) == 2 ? profile_.rates.half_flops : profile_.rates.single_flops;
  }

 private:
  /// How long; the clock goes on from there.
  double advance_to(double time);
  void take_in_turns(const Work& start);

  KernelProfile profile_;
  std::int64_t most_repeats_;
  Work work_;
  double weight_ = 1;
  CopyClocks copies_, disk_;
  double clock_ = 0;
  double computed_seconds_ = 0, issued_seconds_ = 0;  // since `clock_`, of operations once each
};

}  // namespace neap::step
