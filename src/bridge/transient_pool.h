// The memory of a phase's tensors on the host device: libtorch's CPU allocator while the phase is open
// (phase_allocator.h).
//
// Threads   open and close on one thread, whose tensors come from here. Tensors may be freed by any thread.
// Lifetime  tensors may outlive their phase and the pool: each keeps the memory of the pool alive.
// Failure   neap::Error: opening while a phase of another pool is open.
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

  /// From now on tensors of threads outside a HostScope come from here; peaks start anew.
  virtual void open(std::string phase) = 0;
  /// Puts back the allocator that libtorch had. Returns the bytes of tensors that are still alive.
  virtual Bytes close() = 0;
  /// Free segments go to the arena. While it is closed.
  virtual void give_back() = 0;
  [[nodiscard]] virtual cache::CacheStats stats() const = 0;
};

}  // namespace neap::bridge
