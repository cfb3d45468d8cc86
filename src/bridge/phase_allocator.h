// libtorch's CPU allocator while a phase is open: tensors of the phase's thread come from the phase.
//
// Model     libtorch has one CPU allocator a process. A PhaseAllocator takes its place while it is installed and then
//           puts it back, with the priority that it had. What other threads make (scratch of kernels' workers), and what
//           the phase's thread makes under a HostScope (bridge/runtime.h), comes from the allocator before it.
//
// Threads   install, remove and HostScopes: the phase's thread; while one is installed or removed no other thread makes
//           tensors. allocate: any.
//
// Lifetime  libtorch keeps the allocator's address in tensors for resize_: a tensor that outlives it may be used and
//           freed, not resized.
//
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
  /// Removes itself where that was left out.
  ~PhaseAllocator() override { remove(); }

  /// The one that is installed, where the calling thread is its phase's; else null.
  [[nodiscard]] static PhaseAllocator* current();

  void begin_host_scope() { ++host_scopes_; }
  void end_host_scope() { --host_scopes_; }

  /// Of memory outside of the phase; the phase's own cannot be asked for without a tensor.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return host_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 protected:
  /// From now on libtorch asks here, and this thread is the phase's. Fails where a phase of another runtime is open.
  void install();
  /// The second call does nothing.
  void remove();
  /// Whether the calling thread's tensors are the phase's now.
  [[nodiscard]] bool serves() const {
    return std::this_thread::get_id() == thread_ && host_scopes_ == 0;
  }
  /// Memory of the allocator before it.
  [[nodiscard]] c10::DataPtr allocate_outside(std::size_t size) { return host_->allocate(size); }

 private:
  c10::Allocator* host_ = nullptr;
  std::uint8_t priority_ = 0;
  std::thread::id thread_;
  int host_scopes_ = 0;
};

}  // namespace neap::bridge
