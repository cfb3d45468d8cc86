// The bridge: libtorch's memory comes from Neap's device, by the memory plan.
//
// Model     On the CPU every tensor born inside a phase comes from that phase's transient pool (a
// CachingAllocator over
//           the arena's pages); persistent tensors are views of arena regions; whatever is made
//           outside a phase or under HostScope is plain host memory, as it would be beside a GPU.
//           On CUDA, regions are arena regions of the card and transients come from libtorch's own
//           allocator, emptied at each phase's end.
// Threads   phases are opened and closed by one thread; tensors may be made and freed by any
// (autograd's too). Failure   exceptions (neap::Error with a MemoryShortage for out of memory;
// c10::Error from libtorch).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "plan/memory_plan.h"
#include "spec/job.h"
#include "trace/event.h"

namespace neap::bridge {

/// What one phase cost, measured. Bytes are peaks within the phase.
struct PhaseMeasurement {
  std::string phase;
  Bytes persistent;           ///< arena regions resident during the phase
  Bytes transient_allocated;  ///< pool: live tensors
  Bytes transient_reserved;   ///< pool: taken from the device
  Bytes peak;  ///< most physical device memory held in the phase, moves before it included
  Bytes fragmentation_at_peak;  ///< reserved - allocated when the pool last had to grow to its peak
  Bytes moved;                  ///< over the link, for the moves before it
  double seconds = 0;           ///< of the phase's own work
  double move_seconds = 0;
};

class Runtime {
 public:
  /// Chooses the device (auto: CUDA if libtorch_cuda loads and sees a card, else the host device of
  /// the given size), reserves every region of the plan, installs the CPU allocator (once a
  /// process). `events` may be null, else outlives the runtime.
  static std::unique_ptr<Runtime> make(const spec::Job& job, const plan::MemoryPlan& plan,
                                       trace::EventSink* events);
  /// What make would choose, for the planner, without allocating anything. `name` is for people.
  struct Choice {
    plan::Target target;  ///< capacity: device.memory, or what is free now
    std::string name;
  };
  static Choice choose(const spec::DeviceConfig& config);
  virtual ~Runtime() = default;

  [[nodiscard]] virtual at::Device device() const = 0;
  /// bfloat16 on CUDA, float32 on the CPU, or as configured.
  [[nodiscard]] virtual at::ScalarType compute_dtype() const = 0;
  [[nodiscard]] virtual const plan::MemoryPlan& plan() const = 0;

  /// A flat tensor over the plan's part `name` of `tag`: (bytes / element size,) of `dtype`. Its address never changes;
  /// its contents may be touched only while the tag is resident (in phases that need it, or under hold).
  [[nodiscard]] virtual at::Tensor region(std::string_view tag, std::string_view name,
                                          at::ScalarType dtype) = 0;
  /// Makes tags resident outside the schedule (initialization, checkpoint, validation) and puts the
  /// cycle's state back when the returned guard dies.
  class Guard {
   public:
    virtual ~Guard() = default;
  };
  [[nodiscard]] virtual std::unique_ptr<Guard> hold(const std::vector<std::string>& tags) = 0;

  /// Moves tags as the schedule says for phase `name`, binds its pool, marks it in the trace; the
  /// guard's end empties the pool and records a measurement. Tensors of the phase must be dead by
  /// then: one that survives keeps its page and is named in a warning.
  [[nodiscard]] virtual std::unique_ptr<Guard> phase(std::string_view name) = 0;
  /// One for each phase closed since the last call, in order. Throws where one took more than device.memory.
  [[nodiscard]] virtual std::vector<PhaseMeasurement> take_measurements() = 0;
  /// Largest physical device memory over the whole run, and largest allocated (persistent + live
  /// transients).
  [[nodiscard]] virtual Bytes peak() const = 0;
  [[nodiscard]] virtual Bytes peak_allocated() const = 0;
  /// CUDA: what libtorch's allocator could not give when it last threw c10::OutOfMemoryError in a phase, with need,
  /// free and holders; success if it never did. (On the host device the exception says it itself.)
  [[nodiscard]] virtual Status last_oom() const = 0;
  [[nodiscard]] virtual arena::Arena& arena() = 0;
};

/// Tensors made by this thread while it lives are plain host memory, not device memory (batches,
/// logs, checkpoints).
class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  bool previous_;
};

/// Whether this thread's tensors are plain host memory now.
[[nodiscard]] bool in_host_scope();

/// A copy of `t` that outlives the phase: plain host memory.
[[nodiscard]] at::Tensor to_host(const at::Tensor& t);

}  // namespace neap::bridge
