// NVRTC, NVIDIA's run-time compiler of CUDA C++. It comes with torch's CUDA wheels and is loaded at
// run time.
//
// Threads   any.
// Failure   kUnsupported without NVRTC; kInternal with the compiler's log for a source that does not compile.
// Cost      load: one dlopen per process. compile: about a second per source.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/sources.h"

namespace neap::kernels {

/// Compute capability 8.0, the first with bfloat16 arithmetic. Older GPUs run libtorch's kernels.
constexpr int kOldestArchitecture = 80;
/// The first with matrix products of fp8.
constexpr int kFp8Architecture = 89;
/// From here on a kernel can start before the one in front has ended.
constexpr int kEarlyArchitecture = 90;
/// Hopper: the only one whose warp groups multiply from shared memory (wgmma).
constexpr int kWarpGroupArchitecture = 90;

/// NVRTC's name of an architecture: "sm_80", "sm_90a". "a": with the instructions that later
/// architectures do not have.
[[nodiscard]] std::string target_of(int architecture);

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// "13.0"; part of a cubin's key.
  [[nodiscard]] virtual std::string version() const = 0;
  /// The cubin of a source for an architecture; 90 is compute capability 9.0.
  [[nodiscard]] virtual Result<std::string> compile(const Source& source,
                                                    int architecture) const = 0;
};

/// Opens the first of these libraries that loads, for the life of the process.
[[nodiscard]] Result<const Compiler*> open_compiler(const std::vector<std::string>& places);

/// The file in NEAP_LIBNVRTC. Without it libnvrtc.so of CUDA 13 or 12: on the loader's path, in the
/// folder of the loaded libtorch, or in NVIDIA's wheels next to it.
[[nodiscard]] Result<const Compiler*> load_compiler();

}  // namespace neap::kernels
