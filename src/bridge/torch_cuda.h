// Whether CUDA is available. libtorch_cuda is never linked; it is loaded if there is a driver.
//
// Threads   any.
// Cost      seconds with a GPU, a failed dlopen without one; once per process.
#pragma once

#include <string>

namespace neap::bridge {

struct TorchCuda {
  bool available = false;
  int devices = 0;
  std::string reason;  ///< why not; for messages
};
/// Loads libtorch_cuda on the first call.
[[nodiscard]] const TorchCuda& torch_cuda();

}  // namespace neap::bridge
