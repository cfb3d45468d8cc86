// The bridge: libtorch's memory comes from Neap's device, by the memory plan.
//
// Model     On the CPU every tensor born inside a phase comes from that phase's transient pool (a CachingAllocator over
//           the arena's pages); persistent tensors are views of arena regions; whatever is made outside a phase or
//           under HostScope is plain host memory, as it would be with a GPU. On CUDA, regions are arena regions of
//           the card and transients come from libtorch's own allocator. Pools are emptied at a phase's end; where
//           the plan says so (PhasePlan::keeps_pool) not before another phase begins or a tag moves.
//
// Settings  what libtorch has once a process is this runtime's only inside its phases and holds (device_context.h). Runtimes
//           of one process take turns: one phase is open at a time.
//
// Threads   phases are opened and closed by one thread; tensors may be made and freed by any (autograd's too).
//
// Failure   exceptions (neap::Error with a MemoryShortage for out of memory; c10::Error from libtorch). Ends have a
//           status: Phase::close, Hold::close.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "bridge/device_context.h"
#include "bridge/peer_use.h"
#include "bridge/schedule_executor.h"
#include "bridge/streamed_blocks.h"
#include "bridge/streamed_slices.h"
#include "bridge/streamed_states.h"
#include "plan/memory_plan.h"
#include "spec/job.h"
#include "spec/recipe.h"
#include "trace/event.h"

namespace neap::bridge {

class PhaseAllocator;

/// What the slots of a tag took and gave.
struct StreamedUse {
  spec::TagId tag{};
  step::StreamedKind kind{};
  LinkUse use;
};

/// What one phase cost, measured. Bytes are peaks within the phase.
struct PhaseMeasurement {
  spec::PhaseId phase = spec::PhaseId::kTrain;
  Bytes persistent;             ///< arena regions resident during the phase
  Bytes transient_allocated;    ///< pool: live tensors
  Bytes transient_reserved;     ///< pool: taken from the device
  Bytes peak;                   ///< most physical device memory held in the phase
  Bytes fragmentation_at_peak;  ///< reserved - allocated when the pool last had to grow to its peak
  Transition entry;             ///< the moves before it
  std::vector<MoveRecord> behind{};  ///< the moves that ran while it computed
  std::vector<StreamedUse>
      streamed{};      ///< between slots and the host; what was not used is left out
  PeerUse peers;       ///< sums over ranks that ran beside it
  double seconds = 0;  ///< of the phase's own work, streaming included
  [[nodiscard]] Bytes streamed_to_device() const;
  [[nodiscard]] Bytes streamed_to_host() const;
  [[nodiscard]] Bytes moved() const;
  /// Waited for: moves before it and what was left of those behind it.
  [[nodiscard]] double move_seconds() const;
};

class Runtime {
 public:
  /// Opens the chosen device and reserves every region of the plan. `events` may be null, else outlives the runtime and
  /// every tensor of its phases.
  static std::unique_ptr<Runtime> make(const spec::Job& job, const plan::DeviceChoice& choice,
                                       const plan::MemoryPlan& plan, trace::EventSink* events);
  virtual ~Runtime() = default;

  [[nodiscard]] virtual at::Device device() const = 0;
  /// bfloat16 on CUDA, float32 on the CPU, or as configured.
  [[nodiscard]] virtual at::ScalarType compute_dtype() const = 0;
  [[nodiscard]] virtual const plan::MemoryPlan& plan() const = 0;
  /// Entered by phases and holds. Who works for long outside of them enters it too.
  [[nodiscard]] virtual const DeviceContext& context() const = 0;

  /// A flat tensor over the plan's part `name` of `tag`: (bytes / element size,) of `dtype`. Its address never changes;
  /// its contents may be touched only while the tag is resident (in phases that need it, or under hold).
  [[nodiscard]] virtual at::Tensor region(spec::TagId tag, std::string_view name,
                                          at::ScalarType dtype) = 0;

  /// The same for copies to it.
  [[nodiscard]] virtual SlotPart part(spec::TagId tag, std::string_view name) const = 0;

  /// The blocks that the plan keeps on the host behind the slots of `tag`, one of Contents::kScratch that
  /// has such blocks. Used in phases that need the tag.
  [[nodiscard]] virtual StreamedBlocks& streamed_blocks(spec::TagId tag) = 0;
  /// The slice of the weights, or of gradients, that the plan keeps on the host behind the slots of `tag`; null: it is on
  /// the device.
  [[nodiscard]] virtual StreamedSlices* streamed_slices(spec::TagId tag) = 0;
  /// The optimizer states that the plan keeps on the host behind the slots of `tag`; null: the tag holds them.
  [[nodiscard]] virtual StreamedStates* streamed_states(spec::TagId tag) = 0;

  /// Something that is open until close, or until it dies: then a failure is only logged.
  class Scope {
   public:
    virtual ~Scope() = default;
    /// The second call does nothing.
    [[nodiscard]] virtual Status close() = 0;
  };
  /// Makes tags resident outside the schedule (initialization, checkpoint, validation) until the end, which puts the
  /// cycle's state back.
  [[nodiscard]] virtual std::unique_ptr<Scope> hold(const std::vector<spec::TagId>& tags) = 0;

  /// Moves tags as the schedule says for the phase, binds its pool, marks it in the trace. The end closes the pool
  /// and records a measurement; it fails where the phase took more than device.memory. Tensors of the phase must be
  /// dead by then: one that survives keeps its page and is named in a warning.
  [[nodiscard]] virtual std::unique_ptr<Scope> phase(spec::PhaseId id) = 0;

  /// Of the open phase.
  virtual void note_peers(const PeerUse& use) = 0;

  /// One for each phase closed since the last call, in order.
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

/// Tensors made by this thread while it lives are plain host memory, not the open phase's (batches, logs,
/// checkpoints). Opened inside the phase.
class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  PhaseAllocator* allocator_;  // of the open phase, if this thread is its own
};

/// A copy of `t` that outlives the phase: plain host memory.
[[nodiscard]] at::Tensor to_host(const at::Tensor& t);

}  // namespace neap::bridge
