// Replaces libtorch's CPU allocator while a phase is open: tensors of the phase's thread come from
// the phase.
//
// Model     libtorch has one CPU allocator per process. A PhaseAllocator replaces it while
//           installed, and restores it with its priority afterwards. The previous allocator still
//           serves other threads (scratch of kernels' workers), and the phase's thread under a
//           HostScope (bridge/runtime.h).
// Threads   install, remove and HostScopes: the phase's thread. No other thread may create tensors
//           during install() and remove(). allocate(): any.
// Lifetime  libtorch keeps the allocator's address in tensors for resize_. A tensor that outlives
//           the allocator may be used and freed, but not resized.
// Failure   neap::Error.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <thread>

namespace neap::bridge {

class PhaseAllocator : public c10::Allocator {
 public:
  PhaseAllocator() = default;
  PhaseAllocator(const PhaseAllocator&) = delete;
  PhaseAllocator& operator=(const PhaseAllocator&) = delete;
  /// Calls remove() if the owner did not.
  ~PhaseAllocator() override { remove(); }

  /// The installed allocator if the calling thread is its phase's thread; else null.
  [[nodiscard]] static PhaseAllocator* current();

  void begin_host_scope() { ++host_scopes_; }
  void end_host_scope() { --host_scopes_; }

  /// For memory outside the phase. The phase's own memory cannot be requested without a tensor.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return host_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 protected:
  /// Makes libtorch allocate here, with this thread as the phase's thread. Fails if a phase of
  /// another runtime is open.
  void install();
  /// A second call does nothing.
  void remove();
  /// Whether tensors of the calling thread now come from the phase.
  [[nodiscard]] bool serves() const {
    return std::this_thread::get_id() == thread_ && host_scopes_ == 0;
  }
  /// Allocates from the previous allocator.
  [[nodiscard]] c10::DataPtr allocate_outside(std::size_t size) { return host_->allocate(size); }

 private:
  c10::Allocator* host_ = nullptr;
  std::uint8_t priority_ = 0;
  std::thread::id thread_;
  int host_scopes_ = 0;
};

}  // namespace neap::bridge
