// Whether CUDA is to be had: libtorch_cuda is loaded when a driver is there, never linked.
#pragma once

#include <string>

namespace neap::bridge {

struct TorchCuda {
  bool available = false;
  int devices = 0;
  std::string reason;  ///< why not, for people
};
/// Loads once a process. Cost: seconds where a GPU is, a failed dlopen elsewhere. Threads: any.
[[nodiscard]] const TorchCuda& torch_cuda();

}  // namespace neap::bridge
