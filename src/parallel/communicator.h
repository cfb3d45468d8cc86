// What the ranks of a job say to each other: collectives on flat tensors.
//
// Every rank calls the same functions in the same order with the same shapes; a call returns when
// this rank's result is there. Sums run in the order of the ranks (MPI), or in an order that NCCL
// fixes for a machine and a size: the same run twice gives the same bits, and every rank has them.
// Parts     of a tensor that is divided over ranks: counts[r] elements for rank r, one after another, all of
//           it together. A rank may have none. Over MPI a part's sum has the bits of all_reduce.
// Tensors   contiguous; float32, float64, bfloat16, float16, int64, int32, uint8. bfloat16 and
//           float16 are summed in float32 and rounded once over MPI. On the communicator's device,
//           or in host memory, which a GPU communicator stages through a small buffer.
// Threads   one at a time.
// Failure   Error: a tensor that does not fit the call, a rank that is gone (kIo), or one that did
//           not come in time (kTimeout). After a failure only abort is left.
// A rank that goes without a word, or that stops: mpirun, srun and torchrun end the others where it is gone; waits end by
//           themselves after the timeout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/peer_use.h"
#include "parallel/environment.h"

namespace neap::parallel {

enum class Reduce { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool alone() const { return size_ == 1; }
  /// The rank that prints and writes files.
  [[nodiscard]] bool first() const { return rank_ == 0; }
  [[nodiscard]] virtual std::string name() const = 0;  ///< "single", "mpi", "nccl"

  /// `t` of every rank becomes the reduction of all.
  void all_reduce(const at::Tensor& t, Reduce op = Reduce::kSum);
  /// `in` (n,) of rank r becomes elements [r n, (r + 1) n) of `out` (size * n,) on every rank. `in`
  /// may be that very part of `out`.
  void all_gather(const at::Tensor& out, const at::Tensor& in);
  /// This rank's part of `t` (n,) becomes the sum of all ranks'; the other parts are undefined.
  void reduce_scatter(const at::Tensor& t, const std::vector<std::int64_t>& counts);
  /// `t` of rank `root` becomes the sum of all ranks'; on the others it is undefined.
  void reduce(const at::Tensor& t, int root);
  /// Every part of `t` (n,) becomes that of its rank.
  void all_gather(const at::Tensor& t, const std::vector<std::int64_t>& counts);
  /// `t` of every rank becomes rank `root`'s.
  void broadcast(const at::Tensor& t, int root);
  /// Between two ranks: `t` goes to another one, which receives a tensor of as many bytes in the same memory
  /// (the host's, or the device's). It may return before that one has it, and may wait until it receives.
  void send(const at::Tensor& t, int to);
  void receive(const at::Tensor& t, int from);
  /// Returns when every rank has called it.
  void barrier();

  // ---- sums and gathers that are made while this rank computes: the peers lane ----
  /// A tensor of every rank; with `counts`, its parts (n,).
  struct PartialSum {
    at::Tensor tensor;
    std::vector<std::int64_t> counts;
  };
  /// Begins all_reduce of each, or reduce_scatter where there are counts. They belong to the call until join(). On
  /// a GPU it begins when what this thread's stream was given so far is done, and nothing waits for it; over MPI it
  /// is done when the call returns. Host tensors are summed at once, too. The number is for wait_for().
  std::int64_t begin_sums(const std::vector<PartialSum>& sums);
  /// A tensor (n,) of which rank r has counts[r] elements, one after another: this rank's, and where all come to.
  struct PartialGather {
    at::Tensor mine, whole;
    std::vector<std::int64_t> counts;
  };
  /// Begins to gather each, as begin_sums.
  [[nodiscard]] std::int64_t begin_gathers(const std::vector<PartialGather>& gathers);
  /// What this thread's stream is given from now on begins when what has the number is there. The program does not
  /// wait.
  void wait_for(std::int64_t begun);
  /// Begins to send `mine` to the next rank, of the last one to the first, and to receive what the one before sends in
  /// `theirs`, of as many bytes in the same memory, as begin_sums. Both belong to the call until wait_for().
  [[nodiscard]] std::int64_t begin_shift(const at::Tensor& mine, const at::Tensor& theirs);
  /// Waits for everything that was begun.
  void join();
  /// What the lane did since it was asked last. Visible on a GPU: behind everything that it was given before join().
  [[nodiscard]] bridge::PeerUse take_lane_use() { return std::exchange(lane_use_, {}); }

  /// From now on the lane's tensors go through the GPUs' copy engines, where each rank reaches the others' memory
  /// (parallel/copy_lane.h). Every rank calls it. Otherwise why they do not; empty: they do.
  [[nodiscard]] virtual std::string open_copy_lane() { return "the ranks are not on GPUs"; }
  /// Whether they do.
  [[nodiscard]] virtual bool has_copy_lane() const { return false; }

  // Numbers of the host.
  /// How many more the rank with most of something has than this one, which has `own`.
  [[nodiscard]] std::int64_t more_elsewhere(std::int64_t own);
  [[nodiscard]] double sum(double x);
  void sum(std::vector<double>& values);
  void max(std::vector<double>& values);
  /// Every rank's values, one after another; ranks may have other numbers of them.
  [[nodiscard]] std::vector<double> join(const std::vector<double>& values);
  [[nodiscard]] bool any(bool flag);
  /// Fails on every rank when `value` is not the same everywhere; `what` says what it is.
  void expect_same(std::int64_t value, const std::string& what);
  /// Fails on every rank when texts differ, and names them with what this rank has.
  struct NamedText {
    std::string name, text;
  };
  void expect_same(const std::vector<NamedText>& texts);

  /// The ranks that give the same `color`, in the order of their numbers here: a communicator of their own,
  /// which this one outlives. Every rank calls it. A GPU communicator keeps buffers on the card for each.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color);

  /// Ranks that wait for this one go on waiting: their timeouts begin again. For work of unknown length, as a
  /// generation's steps; most calls do nothing.
  virtual void show_life() {}
  /// Tells the other ranks, as far as they can be reached, that this one ends with `exit_code`. Under
  /// MPI the job is killed and this does not return.
  virtual void abort(int exit_code) noexcept = 0;

 protected:
  using Counts = std::vector<std::int64_t>;
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  /// Where a rank's part begins.
  [[nodiscard]] static std::int64_t first_of(const Counts& counts, int rank);
  std::int64_t sum_at_once(const std::vector<PartialSum>& sums);
  std::int64_t gather_at_once(const std::vector<PartialGather>& gathers);
  std::int64_t shift_at_once(const at::Tensor& mine, const at::Tensor& theirs);
  [[nodiscard]] int next_rank() const { return (rank_ + 1) % size_; }
  [[nodiscard]] int rank_before() const { return (rank_ + size_ - 1) % size_; }
  void add_lane_use(const bridge::PeerUse& use) { lane_use_ += use; }

 private:
  // Arguments are checked: contiguous, of a known type, not empty, and size_ > 1.
  virtual void do_all_reduce(const at::Tensor& t, Reduce op) = 0;
  // Of one dimension; parts are all of it.
  virtual void do_reduce_scatter(const at::Tensor& t, const Counts& counts) = 0;
  virtual void do_all_gather(const at::Tensor& t, const Counts& counts) = 0;
  virtual void do_broadcast(const at::Tensor& t, int root) = 0;
  virtual void do_send(const at::Tensor& t, int to) = 0;
  virtual void do_receive(const at::Tensor& t, int from) = 0;
  virtual void do_barrier() = 0;
  // This rank becomes `rank` of `size`.
  [[nodiscard]] virtual std::unique_ptr<Communicator> do_split(int color, int rank, int size) = 0;
  // At least one, none empty.
  virtual std::int64_t do_begin_sums(const std::vector<PartialSum>& sums) {
    return sum_at_once(sums);
  }
  virtual std::int64_t do_begin_gathers(const std::vector<PartialGather>& gathers) {
    return gather_at_once(gathers);
  }
  virtual std::int64_t do_begin_shift(const at::Tensor& mine, const at::Tensor& theirs) {
    return shift_at_once(mine, theirs);
  }
  virtual void do_wait_for(std::int64_t) {}
  virtual void do_join() {}

  void check_parts(const at::Tensor& t, const Counts& counts, const char* call) const;
  void check_root(int root, const char* call) const;
  void check_other(const at::Tensor& t, int rank, const char* call) const;
  [[nodiscard]] std::vector<std::int64_t> of_all_ranks(const std::vector<std::int64_t>& mine);

  int rank_, size_;
  bridge::PeerUse lane_use_;
};

struct ConnectOptions {
  at::Device device = at::kCPU;  ///< of the ranks' tensors: MPI on the CPU, NCCL on a GPU
  double timeout_seconds = 1800;
};
/// One rank: no library is loaded. Several: the backend's library is, and the ranks meet; fails when
/// it is missing, when the launcher did not prepare it, or when ranks stay away.
[[nodiscard]] std::unique_ptr<Communicator> connect(const Environment& environment,
                                                    const ConnectOptions& options);
/// One rank of one.
[[nodiscard]] std::unique_ptr<Communicator> make_single();

}  // namespace neap::parallel
