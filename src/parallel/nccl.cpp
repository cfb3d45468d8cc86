#include "parallel/nccl.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "base/format.h"
#include "base/status.h"
#include "bridge/streams.h"
#include "parallel/copy_lane.h"
#include "parallel/nccl_api.h"
#include "parallel/nccl_watch.h"
#include "parallel/peers_lane.h"
#include "parallel/rendezvous.h"

namespace neap::parallel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kStageBytes = 512 << 10;  // of libtorch's small blocks
constexpr double kSignsInATimeout = 8;           // of life

int type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return kNcclFloat32;
    case at::kDouble:
      return kNcclFloat64;
    case at::kBFloat16:
      return kNcclBfloat16;
    case at::kHalf:
      return kNcclFloat16;
    case at::kLong:
      return kNcclInt64;
    case at::kInt:
      return kNcclInt32;
    default:
      return kNcclUint8;
  }
}

int op_of(Reduce op) {
  return op == Reduce::kMax ? kNcclMax : kNcclSum;
}

std::size_t count(const at::Tensor& t) {
  return static_cast<std::size_t>(t.numel());
}

class Nccl final : public Communicator {
 public:
  Nccl(const Environment& environment, const ConnectOptions& options)
      : Communicator(environment.rank, environment.size),
        api_(*value_or_throw(load_nccl())),
        device_(options.device),
        timeout_seconds_(options.timeout_seconds),
        rendezvous_(meet(environment, options.timeout_seconds)),
        lane_(options.device),
        exceptions_(std::uncaught_exceptions()) {
    const c10::DeviceGuard guard(device_);
    NcclId id{};
    if (first()) check(api_.get_unique_id(&id), "ncclGetUniqueId");
    std::vector<char> bytes(id.bytes, id.bytes + kNcclIdBytes);
    rendezvous_->share(bytes);
    if (bytes.size() != kNcclIdBytes)
      throw Error(ErrorCode::kIo, "The rendezvous holds the key of another program");
    std::memcpy(id.bytes, bytes.data(), kNcclIdBytes);
    check(api_.comm_init_rank(&comm_, size(), id, rank()), "ncclCommInitRank");
    watch();
  }
  /// Of some ranks of `all`, connected by `comm`.
  Nccl(const Nccl& all, NcclComm comm, int rank, int size)
      : Communicator(rank, size),
        api_(all.api_),
        device_(all.device_),
        timeout_seconds_(all.timeout_seconds_),
        rendezvous_(all.rendezvous_),
        lane_(all.device_),
        exceptions_(std::uncaught_exceptions()),
        comm_(comm) {
    watch();
  }

  ~Nccl() override {
    const c10::DeviceGuard guard(device_);
    lane_.clear();
    const bool gave_up = watch_ && watch_->gave_up();
    watch_.reset();
    copies_.reset();
    if (comm_ == nullptr || gave_up) return;
    // Destroying waits for what is under way, which after a failure may never end.
    if (std::uncaught_exceptions() == exceptions_) {
      api_.comm_destroy(comm_);
    } else {
      api_.comm_abort(comm_);
    }
  }

  [[nodiscard]] std::string name() const override { return "nccl"; }

  void abort(int exit_code) noexcept override {
    rendezvous_->report_failure(exit_code);
    const bool gave_up = watch_ && watch_->gave_up();
    watch_.reset();
    if (comm_ != nullptr && !gave_up) give_up();
    comm_ = nullptr;
  }

  void show_life() override {
    const std::chrono::duration<double> since = Clock::now() - shown_;
    if (since.count() < timeout_seconds_ / kSignsInATimeout) return;
    shown_ = Clock::now();
    rendezvous_->show_life();
  }

  std::string open_copy_lane() override {
    std::string problem;
    copies_ = CopyLane::open(*this, device_, problem);
    return problem;
  }
  [[nodiscard]] bool has_copy_lane() const override { return copies_ != nullptr; }

 private:
  void watch() {
    watch_.emplace(*rendezvous_, rank(), timeout_seconds_, [this] { give_up(); });
  }
  // Ends what waits for other ranks, from any thread.
  void give_up() {
    // First what streams wait for: NCCL frees memory, and so waits for the whole card.
    if (copies_) copies_->end_waits();
    api_.comm_abort(comm_);
  }

  // NCCL makes the group without another rendezvous; ranks of one key have the order of their numbers.
  std::unique_ptr<Communicator> do_split(int color, int rank, int size) override {
    const c10::DeviceGuard guard(device_);
    NcclComm made = nullptr;
    watch_->begin("split");
    const int result = api_.comm_split(comm_, color, /*key=*/0, &made, /*config=*/nullptr);
    watch_->end();
    if (watch_->gave_up()) throw Error(watch_->reason());
    check(result, "ncclCommSplit");
    return std::make_unique<Nccl>(*this, made, rank, size);
  }

  void check(int result, const char* call) {
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    const char* last = api_.get_last_error(comm_);
    throw Error(ErrorCode::kIo,
                format("{} failed on rank {}: {}{}{}", call, rank(), api_.get_error_string(result),
                       last != nullptr && *last != '\0' ? ": " : "", last != nullptr ? last : ""));
  }

  void expect_connected() const {
    if (comm_ == nullptr || watch_->gave_up())
      throw Error(ErrorCode::kIo, "The ranks are no longer connected");
  }

  template <class Call>
  void run(const char* name, const Call& call) {
    expect_connected();
    do_join();  // one call is watched at a time
    const c10::DeviceGuard guard(device_);
    watch_->begin(name);
    const int result = call();
    if (!watch_->gave_up()) {
      check(result, name);
      wait(name);
    }
    watch_->end();
    // Aborted: the card's work has ended without a result, and the communicator is gone.
    if (watch_->gave_up()) throw Error(watch_->reason());
  }

  [[nodiscard]] static CudaStream handle_of(const c10::Stream& stream) {
    return static_cast<CudaStream>(bridge::native_handle(stream));
  }
  [[nodiscard]] CudaStream stream() const { return handle_of(bridge::current_stream(device_)); }

  template <class Each>
  [[nodiscard]] static bool on_host(const std::vector<Each>& all, at::Tensor Each::*tensor) {
    return std::any_of(all.begin(), all.end(),
                       [&](const Each& one) { return (one.*tensor).is_cpu(); });
  }
  // By copies each, or as one call of NCCL. What was begun is watched until join(): a failure of another rank ends it,
  // and so does waiting too long, counted from the last call.
  template <class Each, class Copy, class Enqueue>
  std::int64_t begin_on_lane(const char* name, const std::vector<Each>& all,
                             at::Tensor Each::*tensor, const Copy& copy, const Enqueue& enqueue) {
    Bytes bytes;
    for (const Each& one : all) bytes += Bytes((one.*tensor).nbytes());
    return enqueue_on_lane(name, bytes, [&](const c10::Stream& lane) {
      if (copies_) {
        for (const Each& one : all) copy(one, lane);
        return kNcclSuccess;
      }
      return as_one([&](const auto& next) {
        for (const Each& one : all) next([&] { return enqueue(one, handle_of(lane)); });
      });
    });
  }
  // enqueue(lane) gives NCCL's result.
  template <class Enqueue>
  std::int64_t enqueue_on_lane(const char* name, Bytes bytes, const Enqueue& enqueue) {
    expect_connected();
    const c10::DeviceGuard guard(device_);
    lane_name_ = name;
    watch_->begin(name);
    const std::int64_t number = lane_.begin(bytes, [&](const c10::Stream& lane) {
      const int result = enqueue(lane);
      if (!watch_->gave_up()) check(result, name);
    });
    if (watch_->gave_up()) end_lane();
    return number;
  }
  // Calls that NCCL runs as one; the first error. calls(next) gives each of them to next. A group that was begun is ended
  // whatever happens.
  template <class Calls>
  int as_one(const Calls& calls) {
    int result = api_.group_start();
    if (result != kNcclSuccess) return result;
    calls([&](const auto& call) {
      if (result == kNcclSuccess) result = call();
    });
    const int ended = api_.group_end();
    return result != kNcclSuccess ? result : ended;
  }

  std::int64_t do_begin_sums(const std::vector<PartialSum>& sums) override {
    if (on_host(sums, &PartialSum::tensor)) return sum_at_once(sums);
    return begin_on_lane(
        "the sum of gradients", sums, &PartialSum::tensor,
        [&](const PartialSum& sum, const c10::Stream& lane) { add_by_copies(sum, lane); },
        [&](const PartialSum& sum, CudaStream stream) { return enqueue(sum, stream); });
  }
  void add_by_copies(const PartialSum& sum, const c10::Stream& lane) {
    if (sum.counts.empty()) {
      copies_->sum(sum.tensor.view({-1}), lane);
    } else {
      copies_->sum_parts(sum.tensor, sum.counts, lane);
    }
  }

  int enqueue(const PartialSum& sum, CudaStream stream) {
    if (!sum.counts.empty()) return scatter(sum.tensor, sum.counts, stream);
    return api_.all_reduce(sum.tensor.const_data_ptr(), sum.tensor.mutable_data_ptr(),
                           count(sum.tensor), type_of(sum.tensor), kNcclSum, comm_, stream);
  }

  std::int64_t do_begin_gathers(const std::vector<PartialGather>& gathers) override {
    if (on_host(gathers, &PartialGather::whole)) return gather_at_once(gathers);
    return begin_on_lane(
        "the gather of weights", gathers, &PartialGather::whole,
        [&](const PartialGather& one, const c10::Stream& lane) {
          copies_->gather(one.mine, one.whole, one.counts, lane);
        },
        [&](const PartialGather& one, CudaStream stream) {
          return gather(one.mine, one.whole, one.counts, stream);
        });
  }

  // Always by NCCL: the copy lane is of ranks that have the same part of the model.
  std::int64_t do_begin_shift(const at::Tensor& mine, const at::Tensor& theirs) override {
    if (mine.is_cpu()) return shift_at_once(mine, theirs);
    return enqueue_on_lane(
        "the shift of keys and values", Bytes(mine.nbytes()), [&](const c10::Stream& lane) {
          return as_one([&](const auto& next) {
            next([&] {
              return api_.send(mine.const_data_ptr(), count(mine), type_of(mine), next_rank(),
                               comm_, handle_of(lane));
            });
            next([&] {
              return api_.receive(theirs.mutable_data_ptr(), count(theirs), type_of(theirs),
                                  rank_before(), comm_, handle_of(lane));
            });
          });
        });
  }

  void do_wait_for(std::int64_t number) override {
    if (watch_->gave_up()) end_lane();
    const c10::DeviceGuard guard(device_);
    lane_.wait_for(number);
  }

  void do_join() override {
    const c10::DeviceGuard guard(device_);
    if (!lane_.wait_for_all()) return;
    watch_->begin(lane_name_);
    wait(lane_name_);
    if (!watch_->gave_up()) lane_.count_all();
    add_lane_use(lane_.take_use());
    end_lane();
  }
  // Aborted: the card's work has ended without a result, and the communicator is gone.
  void end_lane() {
    lane_.clear();
    watch_->end();
    if (watch_->gave_up()) throw Error(watch_->reason());
  }

  // Until the stream has come here. Short waits spin: a collective in a step takes microseconds.
  void wait(const char* name) {
    c10::Event event(device_.type());
    event.record(bridge::current_stream(device_));
    const auto start = Clock::now();
    auto next_look = std::chrono::milliseconds(100);
    while (!watch_->gave_up() && !event.query()) {
      const auto waited = Clock::now() - start;
      if (waited < std::chrono::milliseconds(2)) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (waited < next_look || watch_->gave_up()) continue;
      next_look += std::chrono::milliseconds(100);
      int error = kNcclSuccess;
      check(api_.comm_get_async_error(comm_, &error), "ncclCommGetAsyncError");
      check(error, name);
    }
  }

  // A piece of host memory on the card and, after `work`, back again.
  template <class Work>
  void through_card(const at::Tensor& host, const Work& work) {
    by_stages(host, [&](const at::Tensor& part) {
      const at::Tensor staged = part.to(device_);
      work(staged);
      part.copy_(staged);
    });
  }
  // work(part) for each piece of host memory.
  template <class Work>
  void by_stages(const at::Tensor& host, const Work& work) {
    const std::int64_t most =
        std::max<std::int64_t>(1, kStageBytes / static_cast<std::int64_t>(host.element_size()));
    const at::Tensor flat = host.view({-1});
    for (std::int64_t at = 0; at < flat.numel(); at += most)
      work(flat.narrow(0, at, std::min(most, flat.numel() - at)));
  }

  void do_all_reduce(const at::Tensor& t, Reduce op) override {
    if (t.is_cpu()) return through_card(t, [&](const at::Tensor& s) { do_all_reduce(s, op); });
    run("all_reduce", [&] {
      return api_.all_reduce(t.const_data_ptr(), t.mutable_data_ptr(), count(t), type_of(t),
                             op_of(op), comm_, stream());
    });
  }

  void do_reduce_scatter(const at::Tensor& t, const Counts& counts) override {
    if (t.is_cpu()) {
      return by_rank(t, counts, [&](const at::Tensor& part, int) {
        through_card(part, [&](const at::Tensor& s) { do_all_reduce(s, Reduce::kSum); });
      });
    }
    run("reduce_scatter", [&] { return scatter(t, counts, stream()); });
  }
  int scatter(const at::Tensor& t, const Counts& counts, CudaStream stream) {
    if (alike(counts)) {
      const at::Tensor mine = t.narrow(0, first_of(counts, rank()), counts[0]);
      return api_.reduce_scatter(t.const_data_ptr(), mine.mutable_data_ptr(), count(mine),
                                 type_of(t), kNcclSum, comm_, stream);
    }
    return grouped(t, counts, [&](const at::Tensor& part, int root) {
      return api_.reduce(part.const_data_ptr(), part.mutable_data_ptr(), count(part), type_of(t),
                         kNcclSum, root, comm_, stream);
    });
  }

  void do_all_gather(const at::Tensor& t, const Counts& counts) override {
    if (t.is_cpu()) return gather_host(t, counts);
    run("all_gather", [&] {
      return gather(t.narrow(0, first_of(counts, rank()), counts[me()]), t, counts, stream());
    });
  }
  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(rank()); }
  int gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts,
             CudaStream stream) {
    if (alike(counts)) {
      return api_.all_gather(mine.const_data_ptr(), whole.mutable_data_ptr(), count(mine),
                             type_of(whole), comm_, stream);
    }
    return grouped(whole, counts, [&](const at::Tensor& part, int root) {
      const at::Tensor& from = root == rank() ? mine : part;
      return api_.broadcast(from.const_data_ptr(), part.mutable_data_ptr(), count(part),
                            type_of(whole), root, comm_, stream);
    });
  }

  [[nodiscard]] static bool alike(const Counts& counts) {
    return std::all_of(counts.begin(), counts.end(), [&](auto n) { return n == counts[0]; });
  }
  // visit(part, its rank) of those that have elements.
  template <class Visit>
  static void by_rank(const at::Tensor& t, const Counts& counts, const Visit& visit) {
    for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
      if (const std::int64_t n = counts[static_cast<std::size_t>(r)]; n > 0)
        visit(t.narrow(0, first_of(counts, r), n), r);
    }
  }
  template <class Call>
  int grouped(const at::Tensor& t, const Counts& counts, const Call& call) {
    return as_one([&](const auto& next) {
      by_rank(t, counts,
              [&](const at::Tensor& part, int root) { next([&] { return call(part, root); }); });
    });
  }

  void gather_host(const at::Tensor& t, const Counts& counts) {
    if (!alike(counts)) {
      return by_rank(t, counts,
                     [&](const at::Tensor& part, int root) { do_broadcast(part, root); });
    }
    const auto width = static_cast<std::int64_t>(t.element_size());
    const std::int64_t most = std::max<std::int64_t>(1, kStageBytes / (width * size()));
    const at::Tensor rows = t.view({size(), -1});
    for (std::int64_t at = 0; at < counts[0]; at += most) {
      const std::int64_t n = std::min(most, counts[0] - at);
      const at::Tensor staged = at::empty({size(), n}, t.options().device(device_));
      staged[rank()].copy_(rows[rank()].narrow(0, at, n));
      do_all_gather(staged.view({-1}), Counts(static_cast<std::size_t>(size()), n));
      rows.narrow(1, at, n).copy_(staged);
    }
  }

  void do_broadcast(const at::Tensor& t, int root) override {
    if (t.is_cpu()) return through_card(t, [&](const at::Tensor& s) { do_broadcast(s, root); });
    run("broadcast", [&] {
      return api_.broadcast(t.const_data_ptr(), t.mutable_data_ptr(), count(t), type_of(t), root,
                            comm_, stream());
    });
  }

  void do_send(const at::Tensor& t, int to) override {
    if (t.is_cpu())
      return by_stages(t, [&](const at::Tensor& part) { do_send(part.to(device_), to); });
    run("send",
        [&] { return api_.send(t.const_data_ptr(), count(t), type_of(t), to, comm_, stream()); });
  }
  void do_receive(const at::Tensor& t, int from) override {
    if (t.is_cpu()) {
      return by_stages(t, [&](const at::Tensor& part) {
        const at::Tensor staged = at::empty(part.sizes(), part.options().device(device_));
        do_receive(staged, from);
        part.copy_(staged);
      });
    }
    run("receive", [&] {
      return api_.receive(t.mutable_data_ptr(), count(t), type_of(t), from, comm_, stream());
    });
  }

  void do_barrier() override {
    const at::Tensor one = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device_));
    do_all_reduce(one, Reduce::kSum);
  }

  const NcclApi& api_;
  at::Device device_;
  double timeout_seconds_;
  Clock::time_point shown_ = Clock::now();  // the last sign of life
  std::shared_ptr<Rendezvous> rendezvous_;
  PeersLane lane_;
  std::unique_ptr<CopyLane> copies_;  // the lane's sums and gathers; none: NCCL's
  int exceptions_;
  NcclComm comm_ = nullptr;
  std::optional<NcclWatch> watch_;
  const char* lane_name_ = "";
};

}  // namespace

std::unique_ptr<Communicator> connect_nccl(const Environment& environment,
                                           const ConnectOptions& options) {
  return std::make_unique<Nccl>(environment, options);
}

}  // namespace neap::parallel
