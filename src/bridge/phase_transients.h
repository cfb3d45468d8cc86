// The temporaries of a phase, whoever allocates them: the phase pool on the host device, libtorch's
// own allocator on CUDA. libtorch's allocators are a process' own: a runtime's are set for its phases only.
//
// Threads   open and close on one thread.   Failure   neap::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "arena/arena.h"
#include "cache/settings.h"
#include "trace/event.h"

namespace neap::bridge {

/// What a phase's temporaries took, as peaks.
struct TransientUse {
  Bytes allocated, reserved;
  Bytes fragmentation;  ///< reserved - allocated when the pool last had to grow to its peak
  /// The last request that libtorch's CUDA allocator failed in the phase.
  std::optional<Bytes> refused{};
};

class PhaseTransients {
 public:
  virtual ~PhaseTransients() = default;
  /// `room`: what the phase's temporaries may take; zero: as much as there is.
  virtual void open(const std::string& phase, Bytes room) = 0;
  /// Gives libtorch its own settings back, and the pages unless `keep`: then the next phase begins with them.
  /// Temporaries that are still alive keep their pages; a warning says how many bytes.
  virtual TransientUse close(const std::string& phase, bool keep) = 0;
  /// The pages that close kept. Between phases.
  virtual void give_back() = 0;
};

/// Segments are pages of `arena`, whose device has the ceiling as its capacity.
[[nodiscard]] std::unique_ptr<PhaseTransients> make_host_transients(
    std::shared_ptr<arena::Arena> arena, const cache::Settings& settings, trace::EventSink* events);
/// Makes cuBLAS' workspaces at once.
[[nodiscard]] std::unique_ptr<PhaseTransients> make_cuda_transients(c10::DeviceIndex index);

}  // namespace neap::bridge
