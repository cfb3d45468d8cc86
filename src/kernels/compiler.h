// NVRTC, NVIDIA's compiler of CUDA C++, found at run time: it comes with torch's CUDA wheels.
//
// Threads   any.
// Failure   kUnsupported without NVRTC; kInternal with the compiler's log for a source that does not compile.
// Cost      load: one dlopen, once a process. compile: about a second a file.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/sources.h"

namespace neap::kernels {

/// Compute capability 8.0: bfloat16 arithmetic. Older cards run libtorch's kernels.
constexpr int kOldestArchitecture = 80;

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// "13.0"; part of a cubin's key.
  [[nodiscard]] virtual std::string version() const = 0;
  /// The cubin of a source for a card, 90 being compute capability 9.0.
  [[nodiscard]] virtual Result<std::string> compile(const Source& source,
                                                    int architecture) const = 0;
};

/// The first of these libraries that loads. The compiler lives as long as the process.
[[nodiscard]] Result<const Compiler*> open_compiler(const std::vector<std::string>& places);

/// The file in NEAP_LIBNVRTC. Without it libnvrtc.so of CUDA 13 or 12: on the loader's path, in the
/// folder of the loaded libtorch, or in NVIDIA's wheels next to it.
[[nodiscard]] Result<const Compiler*> load_compiler();

}  // namespace neap::kernels
