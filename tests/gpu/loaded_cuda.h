// libtorch's CUDA library in tests that need a GPU.
#pragma once

#include <ATen/Context.h>
#include <dlfcn.h>

namespace neap {

/// Whether the library loads and finds a GPU.
inline bool has_cuda() {
  static const bool kLoaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  return kLoaded && at::hasCUDA();
}

}  // namespace neap
