#include "bridge/phase_transients.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/format.h"
#include "base/log.h"
#include "bridge/torch_cuda_memory.h"
#include "bridge/transient_pool.h"

namespace neap::bridge {
namespace {

class HostTransients final : public PhaseTransients {
 public:
  HostTransients(std::shared_ptr<arena::Arena> arena, const cache::Settings& settings,
                 trace::EventSink* events)
      : pool_(TransientPool::make(std::move(arena), settings, events)) {}
  // `room` is not needed, because the device's capacity is the limit.
  void open(const std::string& phase, Bytes) override { pool_->open(phase); }
  TransientUse close(const std::string& phase, bool keep) override {
    const cache::CacheStats stats = pool_->stats();
    const Bytes alive = pool_->close();
    if (!keep || !alive.is_zero()) give_back();
    if (!alive.is_zero() && alive != alive_) {
      log::warn(format("{} of tensors outlive phase \"{}\": their pages cannot serve the next one",
                       alive, phase));
    }
    alive_ = alive;
    return {stats.peak_allocated, stats.peak_reserved, stats.fragmentation_at_peak};
  }
  [[nodiscard]] Bytes kept() const override { return pool_->stats().reserved; }
  void give_back() override { pool_->give_back(); }

 private:
  std::shared_ptr<TransientPool> pool_;
  Bytes alive_;
};

class CudaTransients final : public PhaseTransients {
 public:
  explicit CudaTransients(c10::DeviceIndex index) : index_(index) { make_cublas_workspaces(index); }
  void open(const std::string&, Bytes room) override {
    // Frees pages of allocations between phases, which are not in the plan.
    if (reserved() != kept_) give_back();
    limit_.emplace(index_, room.is_zero() ? room : room + kTorchCudaSegment);
    refusals_before_ = last_torch_cuda_oom().count;
    allocator().resetPeakStats(index_);
  }
  TransientUse close(const std::string&, bool keep) override {
    const auto stats = allocator().getDeviceStats(index_);
    const auto peak = [](const auto& array) {
      return Bytes(static_cast<std::uint64_t>(array[0].peak));
    };
    limit_.reset();
    if (keep) {
      kept_ = reserved();
    } else {
      give_back();
    }
    const Bytes allocated = peak(stats.allocated_bytes);
    const Bytes reserved = peak(stats.reserved_bytes);
    TransientUse use{allocated, reserved, saturating_sub(reserved, allocated)};
    const TorchCudaOom last = last_torch_cuda_oom();
    if (last.count != refusals_before_) use.refused = last.requested;
    return use;
  }
  [[nodiscard]] Bytes kept() const override { return kept_; }
  void give_back() override {
    allocator().emptyCache();
    kept_ = Bytes();
  }

 private:
  static c10::DeviceAllocator& allocator() {
    return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
  }
  [[nodiscard]] Bytes reserved() const {
    return Bytes(
        static_cast<std::uint64_t>(allocator().getDeviceStats(index_).reserved_bytes[0].current));
  }

  c10::DeviceIndex index_;
  Bytes kept_;                           // reserved bytes if the last phase's pages were kept
  std::optional<TorchCudaLimit> limit_;  // set while a phase is open
  std::uint64_t refusals_before_ = 0;
};

}  // namespace

std::unique_ptr<PhaseTransients> make_host_transients(std::shared_ptr<arena::Arena> arena,
                                                      const cache::Settings& settings,
                                                      trace::EventSink* events) {
  return std::make_unique<HostTransients>(std::move(arena), settings, events);
}

std::unique_ptr<PhaseTransients> make_cuda_transients(c10::DeviceIndex index) {
  return std::make_unique<CudaTransients>(index);
}

}  // namespace neap::bridge
