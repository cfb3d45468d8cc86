#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/format.h"
#include "base/log.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda_copy_queue.h"

namespace neap::device {
namespace {

using cuda::ContextScope;
using cuda::Driver;

/// A stream for blocking calls, so that they do not wait for other work.
struct BlockingStream {
  std::mutex mutex;
  cuda::Stream stream = nullptr;
};

class CudaDeviceImpl final : public CudaDevice {
 public:
  CudaDeviceImpl(const Driver& driver, DeviceInfo info, cuda::Card card,
                 cuda::AllocationProperties properties)
      : CudaDevice(std::move(info)), driver_(driver), card_(card), properties_(properties) {
    access_.push_back({{1, card.device}, cuda::kAccessReadWrite});
  }

  ~CudaDeviceImpl() override {
    const ContextScope scope(card_);
    if (!scope.status().ok()) return;  // after driver shutdown, or in a forked child
    const auto check = [](const Status& status) {
      if (!status.ok() && status.code() != ErrorCode::kDeviceLost) log::warn(status.message());
    };
    std::vector<std::pair<Address, Bytes>> mapped;
    for (const auto& [at, size] : ledger_.reservations()) {
      ledger_.for_each_mapping(at, size, [&](Address start, const Ledger::Mapping& m) {
        mapped.emplace_back(start, m.size);
      });
    }
    for (const auto& [at, size] : mapped)
      check(status(driver_.unmap(at, size.count()), "unmapping at the end"));
    for (const std::uint64_t handle : ledger_.natives())
      check(status(driver_.release(handle), "releasing at the end"));
    for (const auto& [at, size] : ledger_.reservations())
      check(status(driver_.unreserve(at, size.count()), "giving addresses back at the end"));
    if (blocking_.stream != nullptr) (void)driver_.stream_destroy(blocking_.stream);
    // The primary context stays retained: libtorch and other code may use it.
  }

  Result<MemoryInfo> memory() override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    std::size_t free = 0;
    std::size_t total = 0;
    NEAP_TRY(status(driver_.memory_info(&free, &total), "asking for free memory"));
    const std::lock_guard lock(mutex_);
    return MemoryInfo{std::min(Bytes(free), ledger_.free()),
                      std::min(Bytes(total), info_.capacity)};
  }

  Status copy_to_host(std::span<const Copy> copies) override {
    return blocking(copies, "copying to the host", [this](const Copy& c) {
      return driver_.copy_to_host_async(c.host, c.device, c.size.count(), blocking_.stream);
    });
  }
  Status copy_to_device(std::span<const Copy> copies) override {
    return blocking(copies, "copying to the device", [this](const Copy& c) {
      return driver_.copy_to_device_async(c.device, c.host, c.size.count(), blocking_.stream);
    });
  }
  Status fill(Address at, Bytes size, std::uint8_t value) override {
    const std::array<Copy, 1> whole{Copy{at, nullptr, size}};
    return blocking(whole, "filling memory", [this, value](const Copy& c) {
      return driver_.fill_async(c.device, value, c.size.count(), blocking_.stream);
    });
  }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override {
    return make_cuda_copy_queue(card_);
  }

  Status synchronize() override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return status(driver_.context_synchronize(), "waiting for the device");
  }
  Status synchronize(StreamId stream) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes it so
    return status(driver_.stream_synchronize(reinterpret_cast<cuda::Stream>(stream)),
                  "waiting for a stream");
  }

 private:
  /// Builds the message only on failure, because every allocation passes here.
  template <class... Parts>
  [[nodiscard]] Status status(int code, FormatString<Parts...> what, Parts&&... parts) const {
    if (code == 0) return {};
    return cuda::to_status(driver_, code, format(what, std::forward<Parts>(parts)...));
  }
  /// Makes one driver call in the GPU's context.
  template <class Call, class... Parts>
  Status in_context(Call call, FormatString<Parts...> what, Parts&&... parts) {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    return status(call(), what, std::forward<Parts>(parts)...);
  }

  Status usable() const override { return cuda::check_process(card_); }
  Result<Address> find_addresses(Bytes size, Bytes alignment) override {
    cuda::DevicePtr at = 0;
    NEAP_TRY(in_context([&] { return driver_.reserve(&at, size.count(), alignment.count(), 0, 0); },
                        "reserving {} of addresses", size));
    return Address{at};
  }
  Status drop_addresses(Address at, Bytes size) override {
    return in_context([&] { return driver_.unreserve(at, size.count()); },
                      "giving {} of addresses back", size);
  }
  Result<std::uint64_t> make_page(Bytes size) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    cuda::Handle handle = 0;
    Status created = status(driver_.create(&handle, size.count(), &properties_, 0),
                            "creating a page of {}", size);
    if (created.code() == ErrorCode::kOutOfDeviceMemory) {
      std::size_t free = 0;
      std::size_t total = 0;
      (void)driver_.memory_info(&free, &total);
      return Status::out_of_memory(format("A page on {}", info_.name),
                                   {size, Bytes(free), Bytes(total), {}});
    }
    NEAP_TRY(std::move(created));
    return std::uint64_t{handle};
  }
  Status drop_page(std::uint64_t handle) override {
    return in_context([&] { return driver_.release(handle); }, "releasing a page");
  }
  Status bind(Address at, Bytes size, std::uint64_t handle) override {
    return in_context([&] { return driver_.map(at, size.count(), 0, handle, 0); }, "mapping {}",
                      size);
  }
  Status open(Address at, Bytes size) override {
    return in_context(
        [&] { return driver_.set_access(at, size.count(), access_.data(), access_.size()); },
        "giving access to {}", size);
  }
  Status unbind(Address at, Bytes size) override {
    return in_context([&] { return driver_.unmap(at, size.count()); }, "unmapping {}", size);
  }
  Status admit(int ordinal, const Ranges& accessible) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    int peer = 0;
    if (driver_.device_get(&peer, ordinal) != 0)
      return {ErrorCode::kInvalidArgument, format("there is no GPU {}", ordinal)};
    int can = 0;
    NEAP_TRY(
        status(driver_.can_access_peer(&can, peer, card_.device), "asking about peer {}", ordinal));
    if (can == 0) {
      return {ErrorCode::kUnsupported,
              format("GPU {} cannot reach the memory of GPU {}", ordinal, info_.ordinal)};
    }
    cuda::AccessDescription grant{{1, peer}, cuda::kAccessReadWrite};
    for (std::size_t done = 0; done < accessible.size(); ++done) {
      const auto& [at, size] = accessible[done];
      Status granted = status(driver_.set_access(at, size.count(), &grant, 1),
                              "granting {} to peer {}", size, ordinal);
      if (granted.ok()) continue;
      grant.flags = cuda::kAccessNone;
      while (done-- > 0) {
        const auto& [back, length] = accessible[done];
        (void)driver_.set_access(back, length.count(), &grant, 1);
      }
      return granted;
    }
    access_.push_back(grant);
    return {};
  }
  Status pin(void* at, Bytes size) override {
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    const int code = driver_.host_register(at, size.count(), cuda::kHostRegisterPortable);
    constexpr int kAlreadyRegistered = 712;
    if (code == kAlreadyRegistered)
      return {ErrorCode::kAlreadyExists, format("host memory at {} is registered already", at)};
    if (code == 2)
      return {ErrorCode::kOutOfHostMemory,
              format("the driver cannot pin {} more host memory", size)};
    return status(code, "pinning {} of host memory", size);
  }
  Status unpin(void* at) override {
    return in_context([&] { return driver_.host_unregister(at); }, "unpinning host memory");
  }
  Result<int> give_out(std::uint64_t handle) override {
    if (!info_.exportable)
      return Status(ErrorCode::kUnsupported,
                    format("{} cannot export pages as descriptors", info_.name));
    int descriptor = -1;
    NEAP_TRY(in_context(
        [&] { return driver_.export_handle(&descriptor, handle, cuda::kHandlePosixDescriptor, 0); },
        "exporting a page"));
    return descriptor;
  }
  Result<std::uint64_t> take_in(int descriptor, Bytes) override {
    cuda::Handle handle = 0;
    // The driver expects the descriptor's number in place of a pointer.
    NEAP_TRY(in_context(
        [&] {
          return driver_.import_handle(
              // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes it so
              &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
              cuda::kHandlePosixDescriptor);
        },
        "importing descriptor {}", descriptor));
    return std::uint64_t{handle};
  }

  template <class Issue>
  Status blocking(std::span<const Copy> copies, std::string_view what, Issue issue) {
    NEAP_TRY(usable());
    NEAP_TRY(check_copies(copies));
    const ContextScope scope(card_);
    NEAP_TRY(scope.status());
    const std::lock_guard lock(blocking_.mutex);
    if (blocking_.stream == nullptr) {
      NEAP_TRY(status(driver_.stream_create(&blocking_.stream, cuda::kStreamNonBlocking),
                      "making a stream"));
    }
    Status first;
    for (const Copy& copy : copies) {
      first = cuda::to_status(driver_, issue(copy), what);
      if (!first.ok()) break;
    }
    // Wait even after a failure: the caller's buffers must not be in use after the return.
    Status done = cuda::to_status(driver_, driver_.stream_synchronize(blocking_.stream), what);
    return first.ok() ? std::move(done) : std::move(first);
  }

  const Driver& driver_;
  cuda::Card card_;
  cuda::AllocationProperties properties_;
  std::vector<cuda::AccessDescription> access_;
  BlockingStream blocking_;
};

}  // namespace

Result<int> cuda_device_count() {
  NEAP_TRY_ASSIGN(const Driver* driver, cuda::load_driver());
  int count = 0;
  NEAP_TRY(cuda::to_status(*driver, driver->device_count(&count), "counting GPUs"));
  return count;
}

Result<std::unique_ptr<CudaDevice>> make_cuda_device(const CudaOptions& options) {
  NEAP_TRY_ASSIGN(const Driver* driver, cuda::load_driver());
  const auto status = [&](int code, std::string_view what) {
    return cuda::to_status(*driver, code, what);
  };
  NEAP_TRY_ASSIGN(const int count, cuda_device_count());
  if (options.ordinal < 0 || options.ordinal >= count) {
    return Status(
        ErrorCode::kInvalidArgument,
        format("there is no GPU {}; the driver sees {} (numbered from 0)", options.ordinal, count));
  }
  NEAP_TRY_ASSIGN(cuda::Card card, cuda::find_card(*driver, options.ordinal));
  const auto attribute = [&](int which) {
    int value = 0;
    return driver->device_attribute(&value, which, card.device) == 0 ? value : 0;
  };
  std::array<char, 256> name{};
  (void)driver->device_name(name.data(), static_cast<int>(name.size()), card.device);
  if (attribute(cuda::kAttributeVirtualMemory) == 0) {
    return Status(ErrorCode::kUnsupported,
                  format("{} has no virtual-memory management", name.data()));
  }
  NEAP_TRY(cuda::retain_context(card));

  DeviceInfo info;
  info.kind = Kind::kCuda;
  info.ordinal = options.ordinal;
  info.name = name.data();
  info.multiprocessors = attribute(cuda::kAttributeMultiprocessors);
  info.architecture =
      10 * attribute(cuda::kAttributeCapabilityMajor) + attribute(cuda::kAttributeCapabilityMinor);
  info.exportable = attribute(cuda::kAttributePosixDescriptor) != 0;
  info.gpu_direct_rdma = attribute(cuda::kAttributeRdmaWithVirtualMemory) != 0;
  cuda::AllocationProperties properties;
  properties.location.id = card.device;
  properties.handle_types = info.exportable ? cuda::kHandlePosixDescriptor : 0;
  properties.flags.gpu_direct_rdma = info.gpu_direct_rdma ? 1 : 0;

  const ContextScope scope(card);
  NEAP_TRY(scope.status());
  // Fabric handles need a running fabric manager. The attribute does not show whether one runs, so
  // create one handle.
  if (info.exportable && attribute(cuda::kAttributeFabric) != 0) {
    cuda::AllocationProperties trial = properties;
    trial.handle_types |= cuda::kHandleFabric;
    std::size_t unit = 0;
    cuda::Handle handle = 0;
    if (driver->granularity(&unit, &trial, cuda::kGranularityRecommended) == 0 &&
        driver->create(&handle, unit, &trial, 0) == 0) {
      (void)driver->release(handle);
      properties = trial;
    }
  }
  std::size_t granularity = 0;
  NEAP_TRY(status(driver->granularity(&granularity, &properties, cuda::kGranularityRecommended),
                  "asking for the granularity"));
  info.granularity = Bytes(granularity);
  std::size_t total = 0;
  NEAP_TRY(status(driver->device_total(&total, card.device), "asking for the card's memory"));
  info.capacity = options.capacity.is_zero()
                      ? Bytes(total)
                      : round_down(std::min(options.capacity, Bytes(total)), info.granularity);
  return std::unique_ptr<CudaDevice>(
      std::make_unique<CudaDeviceImpl>(*driver, std::move(info), card, properties));
}

}  // namespace neap::device
