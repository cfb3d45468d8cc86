#include "device/sim/sim_device.h"

#include <set>

#include "base/format.h"

namespace neap::device {
namespace {

DeviceInfo info_of(const SimOptions& options) {
  DeviceInfo info;
  info.kind = Kind::kSim;
  info.ordinal = options.ordinal;
  info.name = options.name;
  info.granularity = options.granularity;
  info.capacity = options.capacity;
  info.touches_memory = false;
  return info;
}

class SimDeviceImpl final : public SimDevice {
 public:
  explicit SimDeviceImpl(const SimOptions& options)
      : SimDevice(info_of(options)), next_(options.first_address) {}

  Status copy_to_host(std::span<const Copy> copies) override { return check_copies(copies); }
  Status copy_to_device(std::span<const Copy> copies) override { return check_copies(copies); }
  Status fill(Address at, Bytes size, std::uint8_t) override { return check({at, nullptr, size}); }
  Result<std::unique_ptr<CopyQueue>> make_copy_queue() override;
  Status synchronize() override { return {}; }
  Status synchronize(StreamId) override { return {}; }
  Status check(const Copy& copy) const { return check_copies({&copy, 1}); }

 private:
  Result<Address> find_addresses(Bytes size, Bytes alignment) override {
    // Reuse returned ranges of the same size, so that addresses do not grow without bound.
    const Bytes align = std::max(alignment, info_.granularity);
    for (auto it = free_.lower_bound({size.count(), 0});
         it != free_.end() && it->first == size.count(); ++it) {
      if (!is_multiple_of(Bytes(it->second), align)) continue;
      const Address at = it->second;
      free_.erase(it);
      return at;
    }
    const Address at = round_up(Bytes(next_), align).count();
    next_ = at + size.count();
    return at;
  }
  Status drop_addresses(Address at, Bytes size) override {
    free_.emplace(size.count(), at);
    return {};
  }
  Result<std::uint64_t> make_page(Bytes) override { return std::uint64_t{0}; }
  Status drop_page(std::uint64_t) override { return {}; }
  Status bind(Address, Bytes, std::uint64_t) override { return {}; }
  Status open(Address, Bytes) override { return {}; }
  Status unbind(Address, Bytes) override { return {}; }
  Status pin(void*, Bytes) override { return {}; }
  Status unpin(void*) override { return {}; }
  Result<int> give_out(std::uint64_t) override {
    return Status(ErrorCode::kUnsupported, "a simulated page cannot be exported");
  }
  Result<std::uint64_t> take_in(int, Bytes) override {
    return Status(ErrorCode::kUnsupported, "a simulated device cannot import pages");
  }

  Address next_;
  std::set<std::pair<std::uint64_t, Address>> free_;
};

class SimCopyQueue final : public CopyQueue {
 public:
  explicit SimCopyQueue(const SimDeviceImpl& device) : device_(device) {}
  Status to_host(const Copy& copy) override { return device_.check(copy); }
  Status to_device(const Copy& copy) override { return device_.check(copy); }
  Result<std::uint64_t> mark_to_host() override { return std::uint64_t{0}; }
  Result<std::uint64_t> mark_to_device() override { return std::uint64_t{0}; }
  Status wait(std::uint64_t) override { return {}; }
  Status begin_after(StreamId) override { return {}; }
  Status hold_stream(StreamId, std::uint64_t, std::size_t) override { return {}; }
  Result<std::vector<double>> take_held_seconds() override { return std::vector<double>(); }
  Status hold_other_direction(std::uint64_t) override { return {}; }
  Result<double> seconds_between(std::uint64_t, std::uint64_t) override { return 0.0; }
  Status drain() override { return {}; }

 private:
  const SimDeviceImpl& device_;
};

Result<std::unique_ptr<CopyQueue>> SimDeviceImpl::make_copy_queue() {
  return std::unique_ptr<CopyQueue>(std::make_unique<SimCopyQueue>(*this));
}

}  // namespace

Result<std::unique_ptr<SimDevice>> make_sim_device(SimOptions options) {
  const std::uint64_t unit = options.granularity.count();
  if (unit == 0 || (unit & (unit - 1)) != 0)
    return Status(ErrorCode::kInvalidArgument,
                  format("granularity {} is not a power of two", options.granularity));
  options.capacity = round_down(options.capacity, options.granularity);
  return std::unique_ptr<SimDevice>(std::make_unique<SimDeviceImpl>(options));
}

}  // namespace neap::device
