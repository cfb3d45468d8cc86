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
#include "parallel/nccl_calls.h"
#include "parallel/nccl_watch.h"
#include "parallel/peers_lane.h"
#include "parallel/rendezvous.h"
#include "parallel/timeouts.h"

namespace neap::parallel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kStageBytes = 512 << 10;  // counted among libtorch's small allocations

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
  /// A group of some ranks of `all`, connected by `comm`.
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
    // Destroying the communicator waits for pending work, which may never end after a failure.
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
    if (pace_.due()) rendezvous_->show_life();
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
  // Aborts waits for other ranks. Any thread may call it.
  void give_up() {
    // Streams' waits are ended first: NCCL frees memory, which waits for the whole GPU.
    if (copies_) copies_->end_waits();
    api_.comm_abort(comm_);
  }

  // NCCL creates the group without another rendezvous. Ranks with the same key are ordered by their
  // numbers.
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

  // Runs call(calls) on the current stream and waits for it.
  template <class Call>
  void run(const char* name, const Call& call) {
    expect_connected();
    do_join();  // the watch follows one call at a time
    const c10::DeviceGuard guard(device_);
    watch_->begin(name);
    const int result = call(on(bridge::current_stream(device_)));
    if (!watch_->gave_up()) {
      check(result, name);
      wait(name);
    }
    watch_->end();
    // After an abort the GPU's work has ended without a result, and the communicator is gone.
    if (watch_->gave_up()) throw Error(watch_->reason());
  }

  [[nodiscard]] NcclCalls on(const c10::Stream& stream) const {
    return {api_, comm_, rank(), static_cast<CudaStream>(bridge::native_handle(stream))};
  }

  template <class Each>
  [[nodiscard]] static bool on_host(const std::vector<Each>& all, at::Tensor Each::*tensor) {
    return std::any_of(all.begin(), all.end(),
                       [&](const Each& one) { return (one.*tensor).is_cpu(); });
  }
  // Enqueues each tensor by copies, or all as one NCCL call. The work is watched until join(): a
  // failure of another rank ends it, and so does a timeout, counted from the last call.
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
      const NcclCalls calls = on(lane);
      return calls.as_one([&](const auto& next) {
        for (const Each& one : all) next([&] { return enqueue(one, calls); });
      });
    });
  }
  // enqueue(lane) returns NCCL's result.
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
  std::int64_t do_begin_sums(const std::vector<PartialSum>& sums) override {
    if (on_host(sums, &PartialSum::tensor)) return sum_at_once(sums);
    return begin_on_lane(
        "the sum of gradients", sums, &PartialSum::tensor,
        [&](const PartialSum& sum, const c10::Stream& lane) { add_by_copies(sum, lane); },
        [](const PartialSum& sum, const NcclCalls& calls) { return enqueue(sum, calls); });
  }
  void add_by_copies(const PartialSum& sum, const c10::Stream& lane) {
    if (sum.counts.empty()) {
      copies_->sum(sum.tensor.view({-1}), lane);
    } else {
      copies_->sum_parts(sum.tensor, sum.counts, lane);
    }
  }

  static int enqueue(const PartialSum& sum, const NcclCalls& calls) {
    return sum.counts.empty() ? calls.all_reduce(sum.tensor, Reduce::kSum)
                              : calls.reduce_scatter(sum.tensor, sum.counts);
  }

  std::int64_t do_begin_gathers(const std::vector<PartialGather>& gathers) override {
    if (on_host(gathers, &PartialGather::whole)) return gather_at_once(gathers);
    return begin_on_lane(
        "the gather of weights", gathers, &PartialGather::whole,
        [&](const PartialGather& one, const c10::Stream& lane) {
          copies_->gather(one.mine, one.whole, one.counts, lane);
        },
        [](const PartialGather& one, const NcclCalls& calls) {
          return calls.all_gather(one.mine, one.whole, one.counts);
        });
  }

  // Always uses NCCL: the copy engines serve only data-parallel replicas.
  std::int64_t do_begin_shift(const at::Tensor& mine, const at::Tensor& theirs) override {
    if (mine.is_cpu()) return shift_at_once(mine, theirs);
    return enqueue_on_lane("the shift of keys and values", Bytes(mine.nbytes()),
                           [&](const c10::Stream& lane) {
                             const NcclCalls calls = on(lane);
                             return calls.as_one([&](const auto& next) {
                               next([&] { return calls.send(mine, next_rank()); });
                               next([&] { return calls.receive(theirs, rank_before()); });
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
  // After an abort the GPU's work has ended without a result, and the communicator is gone.
  void end_lane() {
    lane_.clear();
    watch_->end();
    if (watch_->gave_up()) throw Error(watch_->reason());
  }

  // Waits until the stream has reached this point. Short waits spin, because a step's collectives
  // take microseconds.
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

  // Copies a piece of host memory to the GPU, runs `work`, and copies it back.
  template <class Work>
  void through_card(const at::Tensor& host, const Work& work) {
    by_stages(host, [&](const at::Tensor& part) {
      const at::Tensor staged = part.to(device_);
      work(staged);
      part.copy_(staged);
    });
  }
  // Calls work(piece) for each piece of host memory.
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
    run("all_reduce", [&](const NcclCalls& calls) { return calls.all_reduce(t, op); });
  }

  void do_reduce_scatter(const at::Tensor& t, const Counts& counts) override {
    if (t.is_cpu()) {
      return NcclCalls::by_rank(t, counts, [&](const at::Tensor& part, int) {
        through_card(part, [&](const at::Tensor& s) { do_all_reduce(s, Reduce::kSum); });
      });
    }
    run("reduce_scatter", [&](const NcclCalls& calls) { return calls.reduce_scatter(t, counts); });
  }

  void do_all_gather(const at::Tensor& t, const Counts& counts) override {
    if (t.is_cpu()) return gather_host(t, counts);
    const at::Tensor mine =
        t.narrow(0, first_of(counts, rank()), counts[static_cast<std::size_t>(rank())]);
    run("all_gather", [&](const NcclCalls& calls) { return calls.all_gather(mine, t, counts); });
  }

  void gather_host(const at::Tensor& t, const Counts& counts) {
    if (!NcclCalls::alike(counts)) {
      return NcclCalls::by_rank(
          t, counts, [&](const at::Tensor& part, int root) { do_broadcast(part, root); });
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
    run("broadcast", [&](const NcclCalls& calls) { return calls.broadcast(t, root); });
  }

  void do_send(const at::Tensor& t, int to) override {
    if (t.is_cpu())
      return by_stages(t, [&](const at::Tensor& part) { do_send(part.to(device_), to); });
    run("send", [&](const NcclCalls& calls) { return calls.send(t, to); });
  }
  void do_receive(const at::Tensor& t, int from) override {
    if (t.is_cpu()) {
      return by_stages(t, [&](const at::Tensor& part) {
        const at::Tensor staged = at::empty(part.sizes(), part.options().device(device_));
        do_receive(staged, from);
        part.copy_(staged);
      });
    }
    run("receive", [&](const NcclCalls& calls) { return calls.receive(t, from); });
  }

  void do_barrier() override {
    const at::Tensor one = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device_));
    do_all_reduce(one, Reduce::kSum);
  }

  const NcclApi& api_;
  at::Device device_;
  double timeout_seconds_;
  LifePace pace_{timeout_seconds_};
  std::shared_ptr<Rendezvous> rendezvous_;
  PeersLane lane_;
  std::unique_ptr<CopyLane> copies_;  // copy-engine collectives; null: NCCL runs them
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
