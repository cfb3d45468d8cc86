// Adds up the cost of operations, and simulates when they run: a clock of the device's computation,
// with copies, a disk and other ranks in parallel.
//
// Work of loops and alternatives is weighted, so that a few rounds represent all of them.
//
// Times     as in copy_clocks.h: each simulated round of a loop counts once.
// Threads   one.
// Failure   none.
// Cost      constant, a few nanoseconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "spec/types/mesh.h"
#include "step/counting/copy_clocks.h"
#include "step/counting/counted_work.h"
#include "step/operations/shape.h"

namespace neap::step {

class WorkMeter {
 public:
  [[nodiscard]] const KernelProfile& profile() const { return profile_; }
  [[nodiscard]] const Work& work() const { return work_; }
  /// Runs body(i) for i = 0 .. n - 1; all rounds must have the same cost. Memory that a round
  /// allocates is freed by the `lasting`-th round after it. If a plan runs more than one round, it
  /// runs that many, and one more.
  template <class Body>
  void repeat(std::int64_t n, const Body& body, std::int64_t lasting = 1) {
    const std::int64_t enough =
        counts_aside() ? std::max(most_repeats_, lasting + 1) : most_repeats_;
    const std::int64_t rounds = std::min(n, enough);
    for (std::int64_t i = 0; i < rounds; ++i)
      weighted(i + 1 < rounds ? 1 : static_cast<double>(n - i), [&] { body(i); });
  }
  /// Runs body(), whose work counts `times` times.
  template <class Body>
  void weighted(double times, const Body& body) {
    const double outer = weight_;
    weight_ *= times;
    body();
    weight_ = outer;
  }

  /// Whether aside() runs anything.
  [[nodiscard]] bool counts_aside() const { return most_repeats_ > 1; }
  /// Runs body() without counting its work. Does nothing if loops are limited to their first round.
  template <class Body>
  void aside(const Body& body) {
    if (counts_aside()) weighted(0, body);
  }

  /// Runs body(), which produces a token that the host waits for. Launches then overlap little with
  /// the device's computation.
  template <class Body>
  auto one_token(const Body& body) {
    const Turns turns(*this);
    return body();
  }

  /// Runs body(), which the host launches as a whole. Returns the number of its kernels.
  template <class Body>
  double in_graph(const Body& body) {
    const Work before = std::exchange(work_, {});
    const double weight = std::exchange(weight_, 1);
    const std::int64_t repeats =
        std::exchange(most_repeats_, std::max(most_repeats_, kGraphRounds));
    const double issued = std::exchange(issued_seconds_, 0);
    in_graph_ = true;
    kernels_ = 0;
    body();
    in_graph_ = false;
    most_repeats_ = repeats;
    weight_ = weight;
    issued_seconds_ = issued;
    launch_graph(std::exchange(work_, before));
    return kernels_;
  }

  // ---- copies that overlap with computation ----
  /// When the computation so far is done.
  [[nodiscard]] double now() const { return clock_ + std::max(computed_seconds_, issued_seconds_); }
  /// Starts a copy at `from` or later. Returns when it ends.
  double begin_copy(Direction direction, double bytes, double from);
  /// The same between host and disk; a read has the direction to the device.
  double begin_disk(Direction direction, double bytes, double from);
  /// Later computation starts at `time` or later.
  void wait_until(double time);
  /// When all copies so far have ended.
  [[nodiscard]] double copied() const { return std::max(copies_.end(), disk_.end()); }

  // ---- collectives, on the same clock ----
  /// Time of a collective over the ranks of an axis, by default the data-parallel ranks, in which
  /// each rank sends `sent` bytes.
  [[nodiscard]] double peer_seconds(double sent, double rounds = 1,
                                    spec::Axis axis = spec::Axis::kData) const {
    return step::peer_seconds(profile_.peers.at(static_cast<std::size_t>(axis)), sent, rounds);
  }
  /// Later computation starts at `time` or later, after collectives that sent `sent` bytes per
  /// rank.
  void wait_for_peers(double time, double sent, spec::Axis axis = spec::Axis::kData);

 protected:
  /// `most_repeats`: a repeat() runs this many rounds, and the last one's work is counted for the
  /// rest.
  WorkMeter(const KernelProfile& profile, std::int64_t most_repeats)
      : profile_(profile),
        most_repeats_(most_repeats),
        copies_(profile.link),
        disk_(profile.disk) {}
  ~WorkMeter() = default;

  /// An operation that moves memory, at `share` of the device's throughput.
  void add_traffic(double bytes, double share = 1);
  /// A matrix product: `bytes` of operands and result, which is added to `sum_bytes`.
  void add_product(double flops, double bytes, double sum_bytes, Dtype dtype);
  /// A matrix product of fp8.
  void add_fp8_product(double flops, double bytes);
  /// A kernel with `flops` on elements of `dtype`, at `share` of the rate of matrix products, whose
  /// traffic is hidden.
  void add_kernel(double flops, double bytes, Dtype dtype, double share);
  /// `issues` is the launch time in units of libtorch operations.
  void add_work(double flops, double bytes, double seconds, double issues = 1);
  /// A collective in which each rank of an axis sends `sent` bytes, passed on `rounds` times.
  void add_peer_work(double sent, spec::Axis axis, double rounds = 1);
  /// A copy that operations wait for.
  void copy_at_once(Direction direction, double bytes);
  /// FLOPs per second.
  [[nodiscard]] double product_rate(Dtype dtype) const {
    return element_bytes(dtype) == 2 ? profile_.rates.half_flops : profile_.rates.single_flops;
  }

 private:
  // A scope of operations that end before the host goes on.
  class Turns {
   public:
    explicit Turns(WorkMeter& meter) : meter_(meter), start_(meter.work_) {}
    ~Turns() {
      if (!meter_.in_graph_) meter_.take_in_turns(start_);
    }
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

   private:
    WorkMeter& meter_;
    Work start_;
  };
  /// Advances the clock to `time`. Returns by how much.
  double advance_to(double time);
  /// product_seconds(), kept: most products repeat those of other layers and rows.
  double seconds_of_product(double rate, double flops, double bytes, double sum_bytes);
  void take_in_turns(const Work& start);
  void launch_graph(const Work& body);

  // From its second round on, a loop's tensors have the same places in every round.
  static constexpr std::int64_t kGraphRounds = 2;

  struct Product {
    double rate = 0, flops = 0, bytes = 0, sum_bytes = 0;
    friend bool operator==(const Product&, const Product&) = default;
  };
  struct KnownProduct {
    Product product;
    double seconds = 0;
  };

  KernelProfile profile_;
  std::int64_t most_repeats_;
  std::array<KnownProduct, 64> products_;  // by a hash of their sizes
  Work work_;
  double weight_ = 1;
  bool in_graph_ = false;
  double kernels_ = 0;  // of the graph
  CopyClocks copies_, disk_;
  double clock_ = 0;
  double computed_seconds_ = 0, issued_seconds_ = 0;  // since `clock_`; each operation counts once
};

}  // namespace neap::step
