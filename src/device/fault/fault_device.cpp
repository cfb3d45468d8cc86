#include "device/fault/fault_device.h"

#include <array>
#include <mutex>

#include "base/format.h"

namespace neap::device {
namespace {

constexpr std::array<std::string_view, kCallKinds> kNames = {"memory",
                                                             "reserve",
                                                             "unreserve",
                                                             "create",
                                                             "release",
                                                             "map",
                                                             "set_access",
                                                             "unmap",
                                                             "grant_peer",
                                                             "copy_to_host",
                                                             "copy_to_device",
                                                             "fill",
                                                             "make_copy_queue",
                                                             "synchronize",
                                                             "register_host",
                                                             "unregister_host",
                                                             "export_page",
                                                             "import_page",
                                                             "queue.to_host",
                                                             "queue.to_device",
                                                             "queue.mark",
                                                             "queue.wait",
                                                             "queue.seconds",
                                                             "queue.drain",
                                                             "queue.begin_after",
                                                             "queue.hold_stream",
                                                             "queue.hold_other_direction"};

class Trigger {
 public:
  void arm(FaultPlan plan) {
    const std::lock_guard lock(mutex_);
    plan_ = plan;
    calls_ = 0;
    failed_.reset();
  }
  /// The injected outcome of one call. Ok: the call is forwarded.
  Status pass(Call call) {
    const std::lock_guard lock(mutex_);
    if (plan_.only && *plan_.only != call) return {};
    ++calls_;
    if (plan_.fail_at == 0 || calls_ < plan_.fail_at || (calls_ > plan_.fail_at && !plan_.stays))
      return {};
    if (!failed_) failed_ = call;
    std::string message = format("{} was made to fail (call {})", to_string(call), calls_);
    if (plan_.code == ErrorCode::kOutOfDeviceMemory) return Status::out_of_memory(message, {});
    return {plan_.code, std::move(message)};
  }
  std::uint64_t calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::optional<Call> failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  mutable std::mutex mutex_;
  FaultPlan plan_;
  std::uint64_t calls_ = 0;
  std::optional<Call> failed_;
};

class FaultCopyQueue final : public CopyQueue {
 public:
  FaultCopyQueue(std::unique_ptr<CopyQueue> below, Trigger& trigger)
      : below_(std::move(below)), trigger_(trigger) {}
  Status to_host(const Copy& copy) override {
    NEAP_TRY(trigger_.pass(Call::kQueueToHost));
    return below_->to_host(copy);
  }
  Status to_device(const Copy& copy) override {
    NEAP_TRY(trigger_.pass(Call::kQueueToDevice));
    return below_->to_device(copy);
  }
  Result<std::uint64_t> mark_to_host() override {
    NEAP_TRY(trigger_.pass(Call::kQueueMark));
    return below_->mark_to_host();
  }
  Result<std::uint64_t> mark_to_device() override {
    NEAP_TRY(trigger_.pass(Call::kQueueMark));
    return below_->mark_to_device();
  }
  Status wait(std::uint64_t mark) override {
    NEAP_TRY(trigger_.pass(Call::kQueueWait));
    return below_->wait(mark);
  }
  Status begin_after(StreamId stream) override {
    NEAP_TRY(trigger_.pass(Call::kQueueBeginAfter));
    return below_->begin_after(stream);
  }
  Status hold_stream(StreamId stream, std::uint64_t mark, std::size_t account) override {
    NEAP_TRY(trigger_.pass(Call::kQueueHoldStream));
    return below_->hold_stream(stream, mark, account);
  }
  Result<std::vector<double>> take_held_seconds() override {
    NEAP_TRY(trigger_.pass(Call::kQueueSeconds));
    return below_->take_held_seconds();
  }
  Status hold_other_direction(std::uint64_t mark) override {
    NEAP_TRY(trigger_.pass(Call::kQueueHoldOtherDirection));
    return below_->hold_other_direction(mark);
  }
  Result<double> seconds_between(std::uint64_t from, std::uint64_t to) override {
    NEAP_TRY(trigger_.pass(Call::kQueueSeconds));
    return below_->seconds_between(from, to);
  }
  Status drain() override {
    // A drain that fails must still have waited: afterwards no copy of this queue may touch memory.
    const Status injected = trigger_.pass(Call::kQueueDrain);
    const Status drained = below_->drain();
    return injected.ok() ? drained : injected;
  }

 private:
  std::unique_ptr<CopyQueue> below_;
  Trigger& trigger_;
};

class FaultDeviceImpl final : public FaultDevice {
 public:
  explicit FaultDeviceImpl(Device& below) : below_(below) {}
  void arm(FaultPlan plan) override { trigger_.arm(plan); }
  std::uint64_t calls() const override { return trigger_.calls(); }
  bool fired() const override { return trigger_.failed().has_value(); }
  std::optional<Call> failed_call() const override { return trigger_.failed(); }

  const DeviceInfo& info() const override { return below_.info(); }
  Result<MemoryInfo> memory() override {
    NEAP_TRY(trigger_.pass(Call::kMemory));
    return below_.memory();
  }
  Result<Address> reserve(Bytes size, Bytes alignment) override {
    NEAP_TRY(trigger_.pass(Call::kReserve));
    return below_.reserve(size, alignment);
  }
  Status unreserve(Address at, Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kUnreserve));
    return below_.unreserve(at, size);
  }
  Result<PageId> create(Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kCreate));
    return below_.create(size);
  }
  Status release(PageId page) override {
    NEAP_TRY(trigger_.pass(Call::kRelease));
    return below_.release(page);
  }
  Status map(Address at, PageId page) override {
    NEAP_TRY(trigger_.pass(Call::kMap));
    return below_.map(at, page);
  }
  Status set_access(Address at, Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kSetAccess));
    return below_.set_access(at, size);
  }
  Status unmap(Address at, Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kUnmap));
    return below_.unmap(at, size);
  }
  Status grant_peer(int ordinal) override {
    NEAP_TRY(trigger_.pass(Call::kGrantPeer));
    return below_.grant_peer(ordinal);
  }
  Status copy_to_host(std::span<const Copy> copies) override {
    NEAP_TRY(trigger_.pass(Call::kCopyToHost));
    return below_.copy_to_host(copies);
  }
  Status copy_to_device(std::span<const Copy> copies) override {
    NEAP_TRY(trigger_.pass(Call::kCopyToDevice));
    return below_.copy_to_device(copies);
  }
  Status fill(Address at, Bytes size, std::uint8_t value) override {
    NEAP_TRY(trigger_.pass(Call::kFill));
    return below_.fill(at, size, value);
  }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override {
    NEAP_TRY(trigger_.pass(Call::kMakeCopyQueue));
    NEAP_TRY_ASSIGN(auto queue, below_.make_copy_queue());
    return std::unique_ptr<CopyQueue>(std::make_unique<FaultCopyQueue>(std::move(queue), trigger_));
  }
  Status synchronize() override {
    NEAP_TRY(trigger_.pass(Call::kSynchronize));
    return below_.synchronize();
  }
  Status synchronize(StreamId stream) override {
    NEAP_TRY(trigger_.pass(Call::kSynchronize));
    return below_.synchronize(stream);
  }
  Status register_host(void* at, Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kRegisterHost));
    return below_.register_host(at, size);
  }
  Status unregister_host(void* at) override {
    NEAP_TRY(trigger_.pass(Call::kUnregisterHost));
    return below_.unregister_host(at);
  }
  Result<int> export_page(PageId page) override {
    NEAP_TRY(trigger_.pass(Call::kExport));
    return below_.export_page(page);
  }
  Result<PageId> import_page(int descriptor, Bytes size) override {
    NEAP_TRY(trigger_.pass(Call::kImport));
    return below_.import_page(descriptor, size);
  }

 private:
  Device& below_;
  Trigger trigger_;
};

}  // namespace

std::string_view to_string(Call call) {
  return kNames[static_cast<std::size_t>(call)];
}

std::unique_ptr<FaultDevice> make_fault_device(Device& below) {
  return std::make_unique<FaultDeviceImpl>(below);
}

}  // namespace neap::device
