// The temporaries of a phase: a phase pool on the CPU, libtorch's own allocator on CUDA. libtorch's
// allocators are process-wide, so a runtime configures them only during its phases.
//
// Threads   open and close on one thread.
// Failure   neap::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "arena/arena.h"
#include "cache/settings.h"
#include "trace/event.h"

namespace neap::bridge {

/// Peaks of a phase's temporaries.
struct TransientUse {
  Bytes allocated, reserved;
  Bytes fragmentation;  ///< reserved - allocated when the pool last grew to its peak
  /// The last request that libtorch's CUDA allocator failed in the phase.
  std::optional<Bytes> refused{};
};

class PhaseTransients {
 public:
  virtual ~PhaseTransients() = default;
  /// `room` is the limit of the phase's temporaries; zero: no limit.
  virtual void open(const std::string& phase, Bytes room) = 0;
  /// Restores libtorch's settings. Frees the pages unless `keep`, which leaves them for the next
  /// phase. Live temporaries keep their pages; a warning gives their bytes.
  virtual TransientUse close(const std::string& phase, bool keep) = 0;
  /// Bytes of the pages that close() kept.
  [[nodiscard]] virtual Bytes kept() const = 0;
  /// Frees these pages. Call it between phases.
  virtual void give_back() = 0;
};

/// Segments are pages of `arena`, whose device has the limit as its capacity.
[[nodiscard]] std::unique_ptr<PhaseTransients> make_host_transients(
    std::shared_ptr<arena::Arena> arena, const cache::Settings& settings, trace::EventSink* events);
/// Creates cuBLAS' workspaces immediately.
[[nodiscard]] std::unique_ptr<PhaseTransients> make_cuda_transients(c10::DeviceIndex index);

}  // namespace neap::bridge
