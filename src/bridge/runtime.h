// The bridge: libtorch allocates from Neap's device, by the memory plan.
//
// Model     On the CPU, tensors created in a phase come from that phase's pool of temporaries: a
//           CachingAllocator over the arena's pages. Persistent tensors are views of arena regions.
//           Tensors created outside a phase, or under HostScope, are in ordinary host memory, as
//           with a GPU. On CUDA, regions are arena regions of the GPU, and temporaries come from
//           libtorch's own allocator. Pools are emptied at a phase's end. If the plan says so
//           (PhasePlan::pool_for), they are emptied only before a phase that it does not name, or
//           when a tag moves.
// Settings  libtorch's process-wide settings are this runtime's only inside its phases and holds
//           (device_context.h). Runtimes of one process take turns: one phase is open at a time.
// Threads   one thread opens and closes phases; any thread may create and free tensors, including
//           autograd's.
// Failure   exceptions: neap::Error, with a MemoryShortage for out of memory; c10::Error from
//           libtorch. Phase::close and Hold::close return a status.
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
#include "plan/results/memory_plan.h"
#include "spec/job/job.h"
#include "spec/recipe/recipe.h"
#include "trace/event.h"

namespace neap::bridge {

class PhaseAllocator;

/// Transfers between a tag's prefetch buffers and the host.
struct StreamedUse {
  spec::TagId tag{};
  step::StreamedKind kind{};
  LinkUse use;
};

/// Measurements of one phase. Bytes are peaks within the phase.
struct PhaseMeasurement {
  spec::PhaseId phase = spec::PhaseId::kTrain;
  Bytes persistent;                  ///< arena regions that are resident during the phase
  Bytes transient_allocated;         ///< pool: live tensors
  Bytes transient_reserved;          ///< pool: reserved from the device
  Bytes peak;                        ///< largest physical device memory in the phase
  Bytes fragmentation_at_peak;       ///< reserved - allocated when the pool last grew to its peak
  Transition entry;                  ///< the moves before it
  std::vector<MoveRecord> behind{};  ///< the moves that overlapped with it
  /// Copies of prefetch buffers; unused ones are left out.
  std::vector<StreamedUse> streamed{};
  PeerUse peers;       ///< collectives that overlapped with it
  double seconds = 0;  ///< time of the phase, including copies of prefetch buffers
  [[nodiscard]] Bytes streamed_to_device() const;
  [[nodiscard]] Bytes streamed_to_host() const;
  [[nodiscard]] Bytes moved() const;
  /// Exposed time: moves before the phase, and the exposed part of overlapped moves.
  [[nodiscard]] double move_seconds() const;
};

class Runtime {
 public:
  /// Opens the chosen device and reserves every region of the plan. `events` may be null; otherwise
  /// it must outlive the runtime and every tensor of its phases.
  static std::unique_ptr<Runtime> make(const spec::Job& job, const plan::DeviceChoice& choice,
                                       const plan::MemoryPlan& plan, trace::EventSink* events);
  virtual ~Runtime() = default;

  [[nodiscard]] virtual at::Device device() const = 0;
  /// bfloat16 on CUDA, float32 on the CPU, or as configured.
  [[nodiscard]] virtual at::ScalarType compute_dtype() const = 0;
  [[nodiscard]] virtual const plan::MemoryPlan& plan() const = 0;
  /// Phases and holds enter it. Longer work outside of them should also enter it.
  [[nodiscard]] virtual const DeviceContext& context() const = 0;

  /// A flat tensor over part `name` of `tag`: (bytes / element size,) of `dtype`. Its address never
  /// changes. Its contents may be accessed only while the tag is resident: in phases that need it,
  /// or under hold().
  [[nodiscard]] virtual at::Tensor region(spec::TagId tag, std::string_view name,
                                          at::ScalarType dtype) = 0;

  /// The same part, as a target of copies.
  [[nodiscard]] virtual SlotPart part(spec::TagId tag, std::string_view name) const = 0;

  /// The offloaded blocks that use the prefetch buffers of `tag`, which must be one of
  /// Contents::kScratch with such blocks. Use it in phases that need the tag.
  [[nodiscard]] virtual StreamedBlocks& streamed_blocks(spec::TagId tag) = 0;
  /// The offloaded shard of weights or gradients that uses the buffers of `tag`; null: it is on the
  /// device.
  [[nodiscard]] virtual StreamedSlices* streamed_slices(spec::TagId tag) = 0;
  /// The offloaded optimizer states that use the buffers of `tag`; null: the tag holds them.
  [[nodiscard]] virtual StreamedStates* streamed_states(spec::TagId tag) = 0;

  /// Stays open until close() or destruction. A failure in the destructor is only logged.
  class Scope {
   public:
    virtual ~Scope() = default;
    /// A second call does nothing.
    [[nodiscard]] virtual Status close() = 0;
  };
  /// Makes tags resident outside the schedule (initialisation, checkpoint, validation). The end
  /// restores the cycle's state.
  [[nodiscard]] virtual std::unique_ptr<Scope> hold(const std::vector<spec::TagId>& tags) = 0;

  /// Moves tags as the schedule says for the phase, opens its pool and marks it in the trace. The
  /// end closes the pool and records a measurement. It fails if the phase exceeded device.memory.
  /// Tensors of the phase must be freed by then; a surviving tensor keeps its page, and a warning
  /// names it.
  [[nodiscard]] virtual std::unique_ptr<Scope> phase(spec::PhaseId id) = 0;

  /// Adds to the open phase.
  virtual void note_peers(const PeerUse& use) = 0;

  /// One per phase closed since the last call, in order.
  [[nodiscard]] virtual std::vector<PhaseMeasurement> take_measurements() = 0;
  /// The largest physical device memory of the run. peak_allocated() is the largest allocated
  /// memory: persistent + live temporaries.
  [[nodiscard]] virtual Bytes peak() const = 0;
  [[nodiscard]] virtual Bytes peak_allocated() const = 0;
  /// CUDA: the request for which libtorch's allocator last threw c10::OutOfMemoryError in a phase,
  /// with the free memory and its holders; success if there was none. On the CPU the exception has
  /// this text.
  [[nodiscard]] virtual Status last_oom() const = 0;
  [[nodiscard]] virtual arena::Arena& arena() = 0;
};

/// While it lives, tensors created by this thread are in ordinary host memory instead of the open
/// phase (batches, logs, checkpoints). Create it inside the phase.
class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  PhaseAllocator* allocator_;  // of the open phase, if this is its thread
};

/// A copy of `t` in ordinary host memory, which may outlive the phase.
[[nodiscard]] at::Tensor to_host(const at::Tensor& t);

}  // namespace neap::bridge
