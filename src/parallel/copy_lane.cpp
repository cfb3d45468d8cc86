#include "parallel/copy_lane.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "base/format.h"
#include "bridge/streams.h"
#include "device/cuda/context.h"
#include "device/cuda/peer_functions.h"
#include "parallel/communicator.h"
#include "parallel/exchange.h"
#include "parallel/shared_counters.h"
#include "plan/counting/nccl_memory.h"

namespace neap::parallel {
namespace {

namespace cuda = device::cuda;
using CopyClock = std::chrono::steady_clock;

// Per pair of ranks: one for a sum and one for a gather, each doubled.
constexpr std::int64_t kSlots = 4;
constexpr std::int64_t kSlotMultiple = 4096;
constexpr auto kLongestEnd = std::chrono::seconds(5);
constexpr std::uint32_t kEndOfWaits = 1U << 30;  // above every message number

// The data that a rank sends to the others, as raw bytes: all run the same program.
struct CopyPeer {
  cuda::MemoryHandle handle;
  char counters[64] = {};  // name of the counters; only the first rank sets it
  char problem[192] = {};  // why this rank cannot take part
};
static_assert(std::is_trivially_copyable_v<CopyPeer>);

void set_text(char* to, std::size_t size, const std::string& text) {
  const std::size_t n = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

class CudaCopyLane final : public CopyLane {
 public:
  CudaCopyLane(int rank, int ranks, c10::Device device)
      : rank_(rank),
        ranks_(ranks),
        device_(device),
        order_(rank, ranks),
        imported_(static_cast<std::size_t>(ranks)),
        exceptions_(std::uncaught_exceptions()) {
    const auto lanes = static_cast<std::int64_t>(ranks - 1) * kSlots;
    slot_bytes_ = static_cast<std::int64_t>(plan::kCopyLaneBytes.count()) / lanes / kSlotMultiple *
                  kSlotMultiple;
  }

  // Allocates this rank's memory and describes it in `out`.
  Status make_memory(CopyPeer& out) {
    NEAP_TRY_ASSIGN(card_, cuda::open_card(device_.index()));
    NEAP_TRY_ASSIGN(functions_, cuda::load_peer_functions(*card_.driver));
    const cuda::ContextScope scope(card_);
    NEAP_TRY(scope.status());
    NEAP_TRY(status(functions_->allocate(&slots_, plan::kCopyLaneBytes.count()),
                    "allocating memory for the other ranks' messages"));
    NEAP_TRY(
        status(functions_->get_handle(&out.handle, slots_), "sharing memory with other ranks"));
    if (rank_ == 0) {
      NEAP_TRY_ASSIGN(SharedCounters made, SharedCounters::make(counters_needed()));
      counters_.emplace(std::move(made));
      set_text(out.counters, sizeof out.counters, counters_->name());
    }
    return {};
  }

  // Maps the other ranks' memory.
  Status reach(const std::vector<CopyPeer>& peers) {
    if (!counters_) {
      NEAP_TRY_ASSIGN(SharedCounters opened,
                      SharedCounters::open(peers.front().counters, counters_needed()));
      counters_.emplace(std::move(opened));
    }
    const cuda::ContextScope scope(card_);
    NEAP_TRY(scope.status());
    NEAP_TRY(status(card_.driver->host_register(counters_->data(), counters_->size_bytes(),
                                                cuda::kHostRegisterPortable),
                    "registering shared host memory"));
    registered_ = true;
    NEAP_TRY(status(functions_->host_pointer(&counters_on_device_, counters_->data(), 0),
                    "mapping shared host memory"));
    for (std::size_t r = 0; r < peers.size(); ++r) {
      if (static_cast<int>(r) == rank_) continue;
      NEAP_TRY(status(
          functions_->open_handle(&imported_[r], peers[r].handle, cuda::kPeerAccessWhenOpened),
          format("mapping the memory of rank {}", r)));
    }
    return {};
  }
  // Called once all ranks have mapped the memory.
  void keep() {
    counters_->remove_name();
    connected_ = true;
    out_ = bridge::pool_stream(device_, bridge::StreamPriority::kHigh);
  }

  ~CudaCopyLane() override {
    if (card_.context == nullptr) return;
    if (std::uncaught_exceptions() != exceptions_) end_waits();
    const cuda::ContextScope scope(card_);
    if (!scope.status().ok()) return;
    if (connected_) {
      (void)card_.driver->stream_synchronize(bridge::native_handle(*out_));
      if (in_) (void)card_.driver->stream_synchronize(bridge::native_handle(*in_));
    }
    for (const cuda::DevicePtr at : imported_)
      if (at != 0) (void)functions_->close_handle(at);
    // Memory must not be freed while another rank has it mapped.
    if (connected_ && !ended_) wait_until_all_closed();
    if (registered_) (void)card_.driver->host_unregister(counters_->data());
    if (slots_ != 0) (void)functions_->free(slots_);
  }

  void sum(const at::Tensor& t, const c10::Stream& stream) override {
    run(order_.sum(even_parts(t.numel(), ranks_), most(t)), t, 0, t, stream);
  }
  void sum_parts(const at::Tensor& t, const Counts& counts, const c10::Stream& stream) override {
    run(order_.sum_parts(counts, most(t)), t, 0, t, stream);
  }
  void gather(const at::Tensor& mine, const at::Tensor& whole, const Counts& counts,
              const c10::Stream& stream) override {
    const auto me = static_cast<std::size_t>(rank_);
    const std::int64_t first =
        std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
    if (const cuda::DevicePtr to = address(whole, first);
        counts[me] > 0 && to != address(mine, 0)) {
      const cuda::ContextScope scope(card_);
      throw_if_error(scope.status());
      check(card_.driver->copy_on_device_async(to, address(mine, 0), mine.nbytes(),
                                               bridge::native_handle(stream)),
            "copying this rank's part");
    }
    run(order_.gather(counts, most(whole)), mine, first, whole, stream);
  }

  void end_waits() noexcept override {
    if (!connected_ || ended_.exchange(true)) return;
    const auto end = CopyClock::now() + kLongestEnd;
    std::vector<std::uint32_t> past;
    for (int r = 0; r < ranks_; ++r) {
      past.push_back(sent(r, rank_).value + kEndOfWaits);
      past.push_back(taken(rank_, r).value + kEndOfWaits);
    }
    // Repeated, because another rank's GPU may still write its own numbers.
    do {
      for (int r = 0; r < ranks_; ++r) {
        sent(r, rank_).value = past[2 * static_cast<std::size_t>(r)];
        taken(rank_, r).value = past[2 * static_cast<std::size_t>(r) + 1];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (!idle() && CopyClock::now() < end);
  }

 private:
  // Counters: for each sender and receiver, messages that have arrived and messages that were
  // consumed; then, for each rank, whether it has ended.
  [[nodiscard]] std::size_t pairs() const {
    return static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(ranks_);
  }
  [[nodiscard]] std::size_t counters_needed() const {
    return 2 * pairs() + static_cast<std::size_t>(ranks_);
  }
  [[nodiscard]] std::size_t pair(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(to);
  }
  [[nodiscard]] SharedCounters::Counter& sent(int from, int to) const {
    return counters_->at(pair(from, to));
  }
  [[nodiscard]] SharedCounters::Counter& taken(int from, int to) const {
    return counters_->at(pairs() + pair(from, to));
  }
  [[nodiscard]] cuda::DevicePtr on_device(const SharedCounters::Counter& counter) const {
    return counters_on_device_ +
           static_cast<cuda::DevicePtr>(reinterpret_cast<const char*>(&counter) -
                                        static_cast<const char*>(counters_->data()));
  }

  // The buffer of a message in the receiver's memory.
  [[nodiscard]] cuda::DevicePtr slot(cuda::DevicePtr memory, int from, int to,
                                     std::int64_t message) const {
    const std::int64_t sender = from < to ? from : from - 1;
    return memory +
           static_cast<cuda::DevicePtr>((sender * kSlots + message % kSlots) * slot_bytes_);
  }
  [[nodiscard]] std::int64_t most(const at::Tensor& t) const {
    return slot_bytes_ / static_cast<std::int64_t>(t.element_size());
  }
  [[nodiscard]] static cuda::DevicePtr address(const at::Tensor& t, std::int64_t element) {
    return reinterpret_cast<cuda::DevicePtr>(t.const_data_ptr()) +
           static_cast<cuda::DevicePtr>(element) * t.itemsize();
  }
  [[nodiscard]] Status status(cuda::Result32 code, const std::string& what) const {
    return cuda::to_status(*card_.driver, code, what);
  }
  void check(cuda::Result32 code, const char* what) const {
    if (code != 0) throw_if_error(status(code, what));
  }

  // Executes `steps`. Pushes read `from`, which begins at element `from_first` of the whole tensor.
  void run(const std::vector<ExchangeStep>& steps, const at::Tensor& from, std::int64_t from_first,
           const at::Tensor& whole, const c10::Stream& in) {
    const cuda::ContextScope scope(card_);
    throw_if_error(scope.status());
    in_ = in;
    const c10::StreamGuard guard(in);
    bridge::order(in, *out_);
    for (const ExchangeStep& step : steps) {
      switch (step.kind) {
        case ExchangeStep::Kind::kPush:
          if (step.summed) bridge::order(in, *out_);
          push(step, address(from, step.first - from_first), from.itemsize());
          break;
        case ExchangeStep::Kind::kAdd:
          add(step, whole);
          break;
        case ExchangeStep::Kind::kStore:
          store(step, whole);
          break;
      }
    }
    bridge::order(*out_, in);
  }
  void push(const ExchangeStep& step, cuda::DevicePtr from, std::size_t width) {
    const cuda::Stream out = bridge::native_handle(*out_);
    if (step.message >= kSlots) wait(out, taken(rank_, step.peer), step.message - kSlots);
    check(card_.driver->copy_on_device_async(
              slot(imported_[static_cast<std::size_t>(step.peer)], rank_, step.peer, step.message),
              from, static_cast<std::size_t>(step.count) * width, out),
          "copying to another rank");
    say(out, sent(rank_, step.peer), step.message);
  }
  void add(const ExchangeStep& step, const at::Tensor& whole) {
    const at::Tensor message = arrived(step.peer, step.message, step.count, whole);
    const at::Tensor into = step.into < 0
                                ? whole.narrow(0, step.first, step.count)
                                : arrived(step.into, step.into_message, step.count, whole);
    into.add_(message);
    say(bridge::native_handle(*in_), taken(step.peer, rank_), step.message);
  }
  void store(const ExchangeStep& step, const at::Tensor& whole) {
    const cuda::Stream in = bridge::native_handle(*in_);
    wait(in, sent(step.peer, rank_), step.message);
    check(card_.driver->copy_on_device_async(
              address(whole, step.first), slot(slots_, step.peer, rank_, step.message),
              static_cast<std::size_t>(step.count) * whole.itemsize(), in),
          "copying what another rank has sent");
    say(in, taken(step.peer, rank_), step.message);
  }
  // Waits on the stream for a message and returns it (count,).
  at::Tensor arrived(int peer, std::int64_t message, std::int64_t count, const at::Tensor& like) {
    wait(bridge::native_handle(*in_), sent(peer, rank_), message);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's address
    void* place = reinterpret_cast<void*>(slot(slots_, peer, rank_, message));
    return at::from_blob(place, {count}, like.options());
  }

  // Waits until the counter exceeds the message's number.
  void wait(cuda::Stream stream, const SharedCounters::Counter& counter, std::int64_t message) {
    check(functions_->wait_value(stream, on_device(counter),
                                 static_cast<std::uint32_t>(message + 1), cuda::kWaitUntilAtLeast),
          "waiting for another rank");
  }
  void say(cuda::Stream stream, const SharedCounters::Counter& counter, std::int64_t message) {
    check(functions_->write_value(stream, on_device(counter),
                                  static_cast<std::uint32_t>(message + 1), cuda::kWriteAfterAll),
          "telling another rank");
  }

  [[nodiscard]] bool idle() const noexcept {
    try {
      return out_->query() && (!in_ || in_->query());
    } catch (const std::exception&) {
      return true;  // the device is lost: nothing runs
    }
  }
  void wait_until_all_closed() const {
    const std::size_t first = 2 * pairs();
    counters_->at(first + static_cast<std::size_t>(rank_)).value = 1;
    const auto end = CopyClock::now() + kLongestEnd;
    const auto all = [&] {
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_); ++r)
        if (counters_->at(first + r).value == 0) return false;
      return true;
    };
    while (!all() && CopyClock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  int rank_, ranks_;
  c10::Device device_;
  ExchangeOrder order_;
  std::int64_t slot_bytes_ = 0;
  cuda::Card card_;
  const cuda::PeerFunctions* functions_ = nullptr;
  cuda::DevicePtr slots_ = 0;              // this rank's buffers: kSlots for each other rank
  std::vector<cuda::DevicePtr> imported_;  // mapped memory of each rank; 0 for this rank
  std::optional<SharedCounters> counters_;
  cuda::DevicePtr counters_on_device_ = 0;
  bool registered_ = false, connected_ = false;
  std::atomic<bool> ended_ = false;
  std::optional<c10::Stream> out_, in_;  // stream of the pushes; stream of the rest
  int exceptions_;
};

// All-gathers the descriptions of all ranks.
std::vector<CopyPeer> exchange_cards(Communicator& group, const CopyPeer& mine) {
  const auto size = static_cast<std::int64_t>(sizeof(CopyPeer));
  const at::Tensor own = at::empty({size}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), &mine, sizeof mine);
  const at::Tensor all = at::empty({size * group.size()}, at::kByte);
  group.all_gather(all, own);
  std::vector<CopyPeer> out(static_cast<std::size_t>(group.size()));
  std::memcpy(out.data(), all.const_data_ptr(), out.size() * sizeof(CopyPeer));
  return out;
}

// The problem of the lowest rank that has one.
std::string problem_of(const std::vector<CopyPeer>& cards) {
  for (std::size_t r = 0; r < cards.size(); ++r)
    if (cards[r].problem[0] != '\0') return format("rank {}: {}", r, cards[r].problem);
  return "";
}

}  // namespace

std::unique_ptr<CopyLane> CopyLane::open(Communicator& group, c10::Device device,
                                         std::string& problem) {
  const c10::DeviceGuard guard(device);
  auto lane = std::make_unique<CudaCopyLane>(group.rank(), group.size(), device);
  CopyPeer mine;
  const auto note = [&](const Status& status) {
    if (!status.ok()) set_text(mine.problem, sizeof mine.problem, status.message());
  };
  note(lane->make_memory(mine));
  const std::vector<CopyPeer> cards = exchange_cards(group, mine);
  problem = problem_of(cards);
  if (problem.empty()) {
    note(lane->reach(cards));
    problem = problem_of(exchange_cards(group, mine));
  }
  if (!problem.empty()) return nullptr;
  lane->keep();
  return lane;
}

}  // namespace neap::parallel
