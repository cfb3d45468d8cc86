// Collectives of a job's ranks on flat tensors.
//
// Every rank calls the same functions in the same order with the same shapes. A call returns when
// this rank's result is complete. MPI adds in ascending order of ranks; NCCL's order is fixed for a
// machine and a size. So a repeated run gets bitwise the same sums, and all ranks have the same
// result.
// Parts     a tensor sharded over ranks: counts[r] elements of rank r, in the order of ranks,
//           without gaps. A count may be 0. Over MPI a part's sum is bitwise equal to that of
//           all_reduce.
// Tensors   contiguous; float32, float64, bfloat16, float16, int64, int32, uint8. Over MPI,
//           bfloat16 and float16 are summed in float32 and rounded once. Tensors are on the
//           communicator's device or in host memory; a GPU communicator stages host tensors through
//           a small buffer.
// Threads   one at a time.
// Failure   Error: a tensor that does not fit the call, a lost rank (kIo), or a rank that did not
//           arrive in time (kTimeout). After a failure only abort() may be called.
// Lost      mpirun, srun and torchrun end the other ranks when a process dies. Every wait also has
//           a timeout.
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

  /// All-reduce of `t` in place.
  void all_reduce(const at::Tensor& t, Reduce op = Reduce::kSum);
  /// All-gather: `in` (n,) of rank r becomes elements [r n, (r + 1) n) of `out` (size * n,) on
  /// every rank. `in` may alias its place in `out`.
  void all_gather(const at::Tensor& out, const at::Tensor& in);
  /// Reduce-scatter in place: this rank's part of `t` (n,) becomes the sum over ranks. The other
  /// parts are undefined.
  void reduce_scatter(const at::Tensor& t, const std::vector<std::int64_t>& counts);
  /// All-gather in place: every part of `t` (n,) becomes that of its rank.
  void all_gather(const at::Tensor& t, const std::vector<std::int64_t>& counts);
  /// `t` of every rank becomes rank `root`'s.
  void broadcast(const at::Tensor& t, int root);
  /// The text of rank `root`. The other ranks' texts are ignored.
  [[nodiscard]] std::string broadcast(std::string text, int root);
  /// Point to point. The receiver's tensor must have the same number of bytes in the same kind of
  /// memory, host or device. send() may return early or block until the receiver is ready.
  void send(const at::Tensor& t, int to);
  void receive(const at::Tensor& t, int from);
  /// Returns when every rank has called it.
  void barrier();

  // ---- collectives that overlap with this rank's computation: the communication queue ----
  /// A tensor of every rank. With `counts` it is divided into parts.
  struct PartialSum {
    at::Tensor tensor;
    std::vector<std::int64_t> counts;
  };
  /// Starts an all_reduce of each tensor, or a reduce_scatter if `counts` are given. The caller
  /// must not touch the tensors until join(). On a GPU the work starts after earlier work of this
  /// thread's stream, and the call does not wait. Over MPI, and for host tensors, the work is
  /// complete when the call returns. Pass the returned number to wait_for().
  std::int64_t begin_sums(const std::vector<PartialSum>& sums);
  /// `mine` is this rank's part; `whole` (n,) receives counts[r] elements of each rank r, in the
  /// order of ranks.
  struct PartialGather {
    at::Tensor mine, whole;
    std::vector<std::int64_t> counts;
  };
  /// Starts an all_gather of each. Rules are those of begin_sums().
  [[nodiscard]] std::int64_t begin_gathers(const std::vector<PartialGather>& gathers);
  /// Later work of this thread's stream waits for operation `begun`. The host does not wait.
  void wait_for(std::int64_t begun);
  /// Starts a shift: sends `mine` to the next rank (the last rank sends to the first) and receives
  /// the previous rank's tensor in `theirs`. Both have the same number of bytes in the same kind of
  /// memory. Otherwise as begin_sums(), but the tensors are free again after wait_for().
  [[nodiscard]] std::int64_t begin_shift(const at::Tensor& mine, const at::Tensor& theirs);
  /// Waits for all operations that were started.
  void join();
  /// Use of the communication queue since the last call. On a GPU, exposed time is the time after
  /// everything that was enqueued before join().
  [[nodiscard]] bridge::PeerUse take_lane_use() { return std::exchange(lane_use_, {}); }

  /// Moves the communication queue to the GPUs' copy engines, if each rank can map the others'
  /// memory (parallel/copy_lane.h). Every rank calls it. Returns an empty string on success,
  /// otherwise the reason.
  [[nodiscard]] virtual std::string open_copy_lane() { return "the ranks are not on GPUs"; }
  /// Whether the communication queue uses the copy engines.
  [[nodiscard]] virtual bool has_copy_lane() const { return false; }

  /// The difference between the largest value over ranks and this rank's value `own`.
  [[nodiscard]] std::int64_t more_elsewhere(std::int64_t own);
  [[nodiscard]] double sum(double x);
  void sum(std::vector<double>& values);
  void max(std::vector<double>& values);
  /// All ranks' values in the order of ranks. Ranks may have different numbers of values.
  [[nodiscard]] std::vector<double> join(const std::vector<double>& values);
  [[nodiscard]] bool any(bool flag);
  /// Fails on every rank unless `value` is the same on all. `what` names it in the message.
  void expect_same(std::int64_t value, const std::string& what);
  /// Fails on every rank if the texts differ. The message names those that differ and shows this
  /// rank's text.
  struct NamedText {
    std::string name, text;
  };
  void expect_same(const std::vector<NamedText>& texts);

  /// A communicator of the ranks that pass the same `color`, in the order of their numbers here.
  /// This communicator must outlive it. Every rank calls it. A GPU communicator allocates device
  /// buffers for each group.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color);

  /// Restarts the timeouts of ranks that wait for this one. Call it during work of unknown length,
  /// such as a generation. Most calls do nothing.
  virtual void show_life() {}
  /// Tells the other ranks, if they can be reached, that this one ends with `exit_code`. Under MPI
  /// it kills the job and does not return.
  virtual void abort(int exit_code) noexcept = 0;

 protected:
  using Counts = std::vector<std::int64_t>;
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  /// The first element of a rank's part.
  [[nodiscard]] static std::int64_t first_of(const Counts& counts, int rank);
  std::int64_t sum_at_once(const std::vector<PartialSum>& sums);
  std::int64_t gather_at_once(const std::vector<PartialGather>& gathers);
  std::int64_t shift_at_once(const at::Tensor& mine, const at::Tensor& theirs);
  [[nodiscard]] int next_rank() const { return (rank_ + 1) % size_; }
  [[nodiscard]] int rank_before() const { return (rank_ + size_ - 1) % size_; }
  void add_lane_use(const bridge::PeerUse& use) { lane_use_ += use; }

 private:
  // Arguments are already checked: contiguous, of a known type, not empty, and size_ > 1.
  virtual void do_all_reduce(const at::Tensor& t, Reduce op) = 0;
  // Tensors have one dimension, and the parts cover them.
  virtual void do_reduce_scatter(const at::Tensor& t, const Counts& counts) = 0;
  virtual void do_all_gather(const at::Tensor& t, const Counts& counts) = 0;
  virtual void do_broadcast(const at::Tensor& t, int root) = 0;
  virtual void do_send(const at::Tensor& t, int to) = 0;
  virtual void do_receive(const at::Tensor& t, int from) = 0;
  virtual void do_barrier() = 0;
  // In the new group this process is rank `rank` of `size`.
  [[nodiscard]] virtual std::unique_ptr<Communicator> do_split(int color, int rank, int size) = 0;
  // There is at least one tensor, and none is empty.
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
  at::Device device = at::kCPU;  ///< device of the ranks' tensors: MPI for the CPU, NCCL for a GPU
  double timeout_seconds = 1800;
};
/// Connects the ranks. One rank loads no library. Several ranks load the backend's library and meet
/// at the rendezvous. Fails if the library is missing, the launcher did not set it up, or ranks do
/// not arrive.
[[nodiscard]] std::unique_ptr<Communicator> connect(const Environment& environment,
                                                    const ConnectOptions& options);
/// A communicator of one rank.
[[nodiscard]] std::unique_ptr<Communicator> make_single();

}  // namespace neap::parallel
