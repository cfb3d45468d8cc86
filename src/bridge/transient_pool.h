// The pool of a phase's tensors on the CPU. It replaces libtorch's CPU allocator while the phase is
// open (phase_allocator.h).
//
// Threads   open and close on one thread, whose tensors come from here. Any thread may free
//           tensors.
// Lifetime  tensors may outlive their phase and the pool object: each keeps the pool's memory
//           alive.
// Failure   neap::Error if a phase of another pool is open.
#pragma once

#include <memory>
#include <string>

#include "arena/arena.h"
#include "cache/caching_allocator.h"
#include "trace/event.h"

namespace neap::bridge {

class TransientPool {
 public:
  /// Segments are pages of `arena`, counted under "transient".
  static std::shared_ptr<TransientPool> make(std::shared_ptr<arena::Arena> arena,
                                             const cache::Settings& settings,
                                             trace::EventSink* events);
  virtual ~TransientPool() = default;

  /// Tensors of this thread outside a HostScope now come from here. Resets the peaks.
  virtual void open(std::string phase) = 0;
  /// Restores libtorch's allocator. Returns the bytes of live tensors.
  virtual Bytes close() = 0;
  /// Returns free segments to the arena. Call it while the pool is closed.
  virtual void give_back() = 0;
  [[nodiscard]] virtual cache::CacheStats stats() const = 0;
};

}  // namespace neap::bridge
