#include "bench/plain.h"

#include <cstring>
#include <utility>

#include "arena/host_memory.h"
#include "base/log.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda_device.h"

namespace neap::bench {
namespace {

using device::Address;
using device::PageId;

/// Logs a failure at the end of a measurement: it changes no number, but should be visible.
void say(const Status& status) {
  if (!status.ok()) log::warn(status.message());
}

class DevicePlainRegion final : public PlainRegion {
 public:
  DevicePlainRegion(device::Device& device, Bytes size, bool anew)
      : device_(device), size_(size), anew_(anew) {}
  ~DevicePlainRegion() override {
    if (page_ != PageId::kNone) say(device_.release(page_));
    if (at_ != 0) say(device_.unreserve(at_, size_));
  }
  Status make_new() {
    NEAP_TRY_ASSIGN(at_, device_.reserve(size_, Bytes(0)));
    NEAP_TRY_ASSIGN(page_, device_.create(size_));
    return {};
  }
  Status take() override {
    if (anew_) NEAP_TRY(make_new());
    NEAP_TRY(device_.map(at_, page_));
    return device_.set_access(at_, size_);
  }
  Status give() override {
    if (anew_) NEAP_TRY(device_.synchronize());
    NEAP_TRY(device_.unmap(at_, size_));
    if (!anew_) return {};
    NEAP_TRY(device_.release(std::exchange(page_, PageId::kNone)));
    return device_.unreserve(std::exchange(at_, 0), size_);
  }

 private:
  device::Device& device_;
  Bytes size_;
  bool anew_;
  Address at_ = 0;
  PageId page_ = PageId::kNone;
};

/// Opens the GPU of `info` through the driver, with its primary context.
Result<device::cuda::Card> open_card(const device::DeviceInfo& info) {
  device::cuda::Card card;
  NEAP_TRY_ASSIGN(card.driver, device::cuda::load_driver());
  card.process = current_process();
  const auto check = [&](int code) {
    return device::cuda::to_status(*card.driver, code, "opening the GPU");
  };
  NEAP_TRY(check(card.driver->device_get(&card.device, info.ordinal)));
  NEAP_TRY(check(card.driver->context_retain(&card.context, card.device)));
  return card;
}

// Runs several copies in sequence and waits for them.
Status copy_on_device(const device::DeviceInfo& info, Address to, Address from, Bytes size,
                      int times) {
  if (!info.touches_memory) return {ErrorCode::kUnsupported, info.name + " has no memory to copy"};
  if (info.kind != device::Kind::kCuda) {
    for (int i = 0; i < times; ++i)
      // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses of this process
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size.count());
    return {};
  }
  NEAP_TRY_ASSIGN(const device::cuda::Card card, open_card(info));
  const device::cuda::ContextScope scope(card);
  NEAP_TRY(Status(scope.status()));
  const device::cuda::Driver& driver = *card.driver;
  for (int i = 0; i < times; ++i) {
    NEAP_TRY(device::cuda::to_status(driver,
                                     driver.copy_on_device_async(to, from, size.count(), nullptr),
                                     "copying on the GPU"));
  }
  return device::cuda::to_status(driver, driver.stream_synchronize(nullptr), "copying on the GPU");
}

class DriverPlainRegion final : public PlainRegion {
 public:
  DriverPlainRegion(const device::cuda::Card& card, const device::DeviceInfo& info, Bytes size,
                    bool anew)
      : card_(card), driver_(*card.driver), size_(size.count()), anew_(anew) {
    properties_.handle_types = info.exportable ? device::cuda::kHandlePosixDescriptor : 0;
    properties_.flags.gpu_direct_rdma = info.gpu_direct_rdma ? 1 : 0;
    properties_.location.id = card.device;
    access_.location = properties_.location;
  }
  ~DriverPlainRegion() override {
    const device::cuda::ContextScope scope(card_);
    if (page_ != 0) say(check(driver_.release(page_)));
    if (at_ != 0) say(check(driver_.unreserve(at_, size_)));
  }
  Status make_new() {
    NEAP_TRY(check(driver_.reserve(&at_, size_, 0, 0, 0)));
    return check(driver_.create(&page_, size_, &properties_, 0));
  }
  Status take() override {
    if (anew_) NEAP_TRY(make_new());
    NEAP_TRY(check(driver_.map(at_, size_, 0, page_, 0)));
    return check(driver_.set_access(at_, size_, &access_, 1));
  }
  Status give() override {
    if (anew_) NEAP_TRY(check(driver_.context_synchronize()));
    NEAP_TRY(check(driver_.unmap(at_, size_)));
    if (!anew_) return {};
    NEAP_TRY(check(driver_.release(std::exchange(page_, 0))));
    return check(driver_.unreserve(std::exchange(at_, 0), size_));
  }
  Status enter() override { return check(driver_.context_push(card_.context)); }
  void leave() override {
    device::cuda::Context popped = nullptr;
    (void)driver_.context_pop(&popped);
  }

 private:
  [[nodiscard]] Status check(int code) const {
    return device::cuda::to_status(driver_, code, "a plain driver call");
  }
  device::cuda::Card card_;
  const device::cuda::Driver& driver_;
  std::size_t size_;
  bool anew_;
  device::cuda::AllocationProperties properties_;
  device::cuda::AccessDescription access_;
  device::cuda::DevicePtr at_ = 0;
  device::cuda::Handle page_ = 0;
};

}  // namespace

Result<std::unique_ptr<PlainLoop>> PlainLoop::make(device::Device& device, std::uint64_t handles,
                                                   Bytes each) {
  std::unique_ptr<PlainLoop> loop(new PlainLoop(device, handles, each));
  NEAP_TRY_ASSIGN(loop->at_, device.reserve(loop->size(), Bytes(0)));
  return loop;
}

PlainLoop::~PlainLoop() {
  if (mapped_) say(unmap());
  say(release());
  if (at_ != 0) say(device_.unreserve(at_, size()));
}

Status PlainLoop::create() {
  while (pages_.size() < count_) {
    NEAP_TRY_ASSIGN(const PageId page, device_.create(each_));
    pages_.push_back(page);
  }
  return {};
}

Status PlainLoop::map() {
  for (std::uint64_t i = 0; i < count_; ++i)
    NEAP_TRY(device_.map(at_ + (each_ * i).count(), pages_[i]));
  mapped_ = true;
  return device_.set_access(at_, size());
}

Status PlainLoop::unmap() {
  mapped_ = false;
  return device_.unmap(at_, size());
}

Status PlainLoop::release() {
  for (const PageId page : pages_) NEAP_TRY(device_.release(page));
  pages_.clear();
  return {};
}

Result<std::unique_ptr<PlainRegion>> PlainRegion::make(device::Device& device, Bytes size,
                                                       bool anew) {
  const device::DeviceInfo& info = device.info();
  if (info.kind == device::Kind::kCuda) {
    NEAP_TRY_ASSIGN(const device::cuda::Card card, open_card(info));
    auto region = std::make_unique<DriverPlainRegion>(card, info, size, anew);
    NEAP_TRY(region->enter());
    const Status made = anew ? Status() : region->make_new();
    region->leave();
    NEAP_TRY(Status(made));
    return std::unique_ptr<PlainRegion>(std::move(region));
  }
  auto region = std::make_unique<DevicePlainRegion>(device, size, anew);
  if (!anew) NEAP_TRY(region->make_new());
  return std::unique_ptr<PlainRegion>(std::move(region));
}

Result<std::unique_ptr<PlainCopies>> PlainCopies::make(device::Device& device, Bytes size) {
  std::unique_ptr<PlainCopies> copies(new PlainCopies(device));
  copies->size_ = round_up(size, 2 * device.info().granularity);
  NEAP_TRY_ASSIGN(copies->memory_, PlainLoop::make(device, 1, copies->size_));
  NEAP_TRY(copies->memory_->create());
  NEAP_TRY(copies->memory_->map());
  NEAP_TRY_ASSIGN(copies->host_, arena::map_host(copies->size_));
  NEAP_TRY(arena::populate_host(copies->host_, copies->size_));
  NEAP_TRY(device.register_host(copies->host_, copies->size_));
  copies->pinned_ = true;
  NEAP_TRY_ASSIGN(copies->queue_, device.make_copy_queue());
  NEAP_TRY(copies->to_host().status());
  NEAP_TRY(copies->to_device().status());
  return copies;
}

PlainCopies::~PlainCopies() {
  queue_ = nullptr;
  if (pinned_) say(device_.unregister_host(host_));
  if (host_ != nullptr) arena::unmap_host(host_, size_, 1);
}

Result<double> PlainCopies::run(bool out, bool in) {
  constexpr Bytes kPiece = 64_MiB;
  const Bytes half = size_ / 2;
  const bool both = out && in;
  const Bytes end = both ? half : size_;
  const auto copy = [&](Bytes at) {
    return device::Copy{memory_->at() + at.count(), host_ + at.count(), Bytes(0)};
  };
  const Timer timer;
  for (Bytes at; at < end; at += kPiece) {
    const Bytes size = std::min(kPiece, end - at);
    if (out) {
      device::Copy one = copy(at);
      one.size = size;
      NEAP_TRY(queue_->to_host(one));
    }
    if (in) {
      device::Copy one = copy(both ? half + at : at);
      one.size = size;
      NEAP_TRY(queue_->to_device(one));
    }
  }
  NEAP_TRY(queue_->drain());
  return rate(size_, timer.ms());
}

Result<double> PlainCopies::to_host() {
  return run(true, false);
}
Result<double> PlainCopies::to_device() {
  return run(false, true);
}
Result<double> PlainCopies::both() {
  return run(true, true);
}
Result<double> PlainCopies::on_device() {
  constexpr int kTimes = 4;  // a single copy ends before the wait for it begins
  const Bytes half = size_ / 2;
  const Timer timer;
  NEAP_TRY(
      copy_on_device(device_.info(), memory_->at(), memory_->at() + half.count(), half, kTimes));
  return rate(2 * half * kTimes, timer.ms());
}

}  // namespace neap::bench
