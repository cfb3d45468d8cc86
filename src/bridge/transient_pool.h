// libtorch's CPU allocator, with a phase open: every tensor comes from the phase's pool.
//
// Threads   tensors of the thread that opened the phase come from its pool; those of other threads (scratch of kernels'
//           workers) are host memory. Tensors may be freed by any thread.
// Lifetime  tensors may outlive their phase and the pool: a pool with live tensors is kept until they die.
#pragma once

#include <memory>
#include <string>

#include "arena/arena.h"
#include "cache/caching_allocator.h"
#include "trace/event.h"

namespace neap::bridge {

class TransientPool {
 public:
  /// Installs the process-wide allocator at the first call. Segments are pages of `arena`, counted under "transient".
  static std::shared_ptr<TransientPool> make(std::shared_ptr<arena::Arena> arena,
                                             const cache::Settings& settings,
                                             trace::EventSink* events);
  virtual ~TransientPool() = default;

  /// From now on tensors of threads outside a HostScope come from here; peaks start anew.
  virtual void open(std::string phase) = 0;
  /// Back to plain host memory; free segments go to the arena. Returns the bytes of tensors that are still alive.
  virtual Bytes close() = 0;
  [[nodiscard]] virtual cache::CacheStats stats() const = 0;
};

}  // namespace neap::bridge
