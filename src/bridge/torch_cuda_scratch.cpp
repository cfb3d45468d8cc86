#include "bridge/torch_cuda_scratch.h"

#include <cstdint>

// Inline functions of the next header call them, and none of those is called here: libcudart and libc10_cuda are not
// linked.
#pragma weak cudaMemGetInfo
namespace c10::cuda {
__attribute__((weak)) void c10_cuda_check_implementation(std::int32_t, const char*, const char*,
                                                         std::uint32_t, bool);
}  // namespace c10::cuda

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "base/format.h"
#include "base/status.h"
#include "bridge/torch_cuda_memory.h"

namespace neap::bridge {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;

thread_local CudaScratch* serving = nullptr;  // of the thread's scope

/// Forwards to libtorch's allocator, except requests and addresses of the calling thread's scope.
class Forwarder final : public caching::CUDAAllocator {
 public:
  /// Stays in libtorch's slot, where it costs other threads a call.
  void install() {
    const std::lock_guard lock(mutex_);
    auto& slot = torch_cuda_allocator_slot();
    CUDAAllocator* const found = slot.load();
    if (found == this) return;
    next_.store(found);
    slot.store(this);
  }

  // ---- requests ----
  DataPtr allocate(std::size_t bytes) override {
    if (serving == nullptr) return next()->allocate(bytes);
    void* const at = serving->allocate(bytes);
    return {at, at, &free_scratch, serving->device()};
  }
  void* raw_alloc(std::size_t bytes) override {
    return serving == nullptr ? next()->raw_alloc(bytes) : serving->allocate(bytes);
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return serving == nullptr ? next()->raw_alloc_with_stream(bytes, stream) : raw_alloc(bytes);
  }
  void raw_delete(void* at) override {
    if (!ours(at)) return next()->raw_delete(at);
    free_scratch(at);
  }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (!ours(data.get())) next()->recordStream(data, stream);
  }
  void recordStream(const DataPtr& data, c10::Stream stream) override {
    if (!ours(data.get())) next()->recordStream(data, stream);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return next()->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    next()->copy_data(to, from, count);
  }
  [[nodiscard]] bool is_simple_data_ptr(const DataPtr& data) const override {
    return next()->is_simple_data_ptr(data);
  }

  // ---- forwarded ----
  bool initialized() override { return next()->initialized(); }
  void emptyCache(MempoolId_t pool) override { next()->emptyCache(pool); }
  caching::DeviceStats getDeviceStats(DeviceIndex device) override {
    return next()->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { next()->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { next()->resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override {
    return next()->getMemoryInfo(device);
  }
  void init(int devices) override { next()->init(devices); }
  double getMemoryFraction(DeviceIndex device) override {
    return next()->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    next()->setMemoryFraction(fraction, device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return next()->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { next()->enable(value); }
  [[nodiscard]] bool isEnabled() const override { return next()->isEnabled(); }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    next()->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* at, std::size_t* size) override {
    return next()->getBaseAllocation(at, size);
  }
  caching::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    return next()->snapshot(pool, traces);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    next()->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    next()->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    next()->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return next()->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    next()->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    next()->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    next()->setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& live) override {
    return next()->checkPoolLiveAllocations(device, pool, live);
  }
  caching::ShareableHandle shareIpcHandle(void* at) override { return next()->shareIpcHandle(at); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return next()->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return next()->isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn recorder, std::size_t most,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    next()->recordHistory(enabled, recorder, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override {
    next()->recordAnnotation(data);
  }
  void pushCompileContext(std::string& data) override { next()->pushCompileContext(data); }
  void popCompileContext() override { next()->popCompileContext(); }
  void setUserMetadata(const std::string& data) override { next()->setUserMetadata(data); }
  std::string getUserMetadata() override { return next()->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    next()->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    next()->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex from, DeviceIndex to) override {
    next()->enablePeerAccess(from, to);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t count, cudaStream_t stream, bool peers) override {
    return next()->memcpyAsync(to, to_device, from, from_device, count, stream, peers);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device,
                                                              MempoolId_t pool) override {
    return next()->getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    return next()->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return next()->name(); }

 private:
  [[nodiscard]] CUDAAllocator* next() const { return next_.load(); }
  [[nodiscard]] static bool ours(const void* at) {
    return serving != nullptr && serving->holds(at);
  }
  // A tensor that outlives its scope leaves its place to the next one.
  static void free_scratch(void* at) {
    if (serving != nullptr) (void)serving->free(at);
  }

  std::mutex mutex_;
  std::atomic<CUDAAllocator*> next_{nullptr};
};

/// Never deleted: libtorch may use it until the process ends.
Forwarder& forwarder() {
  static auto* const kForwarder = new Forwarder;
  return *kForwarder;
}

}  // namespace

CudaScratch::CudaScratch(at::Tensor region)
    : region_(std::move(region)),
      first_(reinterpret_cast<std::uintptr_t>(region_.const_data_ptr())),
      bytes_(region_.nbytes()) {}

void* CudaScratch::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::uint64_t at = places_.take(bytes);
  if (at + bytes > bytes_) {
    places_.give_back(at);
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     format("A decoding step needs {} bytes at {} of its {} of scratch memory",
                            bytes, at, bytes_));
  }
  return reinterpret_cast<void*>(first_ + at);  // NOLINT(performance-no-int-to-ptr)
}

bool CudaScratch::free(void* address) {
  return holds(address) && places_.give_back(reinterpret_cast<std::uintptr_t>(address) - first_);
}

bool CudaScratch::holds(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return at >= first_ && at < first_ + bytes_;
}

CudaScratch::Scope::Scope(CudaScratch& scratch) {
  if (serving != nullptr)
    throw Error(ErrorCode::kInternal, "A scope of CUDA scratch memory is open in this thread");
  forwarder().install();
  scratch.places_.clear();
  serving = &scratch;
}
CudaScratch::Scope::~Scope() {
  serving = nullptr;
}

}  // namespace neap::bridge
