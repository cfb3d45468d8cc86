#include "bridge/torch_cuda.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace neap::bridge {
namespace {

/// A file in the folder of the loaded libtorch, which is known only at run time.
std::string beside_libtorch(const char* name) {
  Dl_info info{};
  const auto* const symbol = reinterpret_cast<const void*>(&at::globalContext);
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return name;
  const std::string file = info.dli_fname;
  const std::size_t folder = file.rfind('/');
  return folder == std::string::npos ? name : file.substr(0, folder + 1) + name;
}

TorchCuda load() {
  TorchCuda result;
  // Without a driver, loading libtorch_cuda would take seconds for nothing.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    result.reason = "no NVIDIA driver (libcuda.so.1 does not load)";
    return result;
  }
  // libtorch reads it when the allocator is first used. With expandable segments, leftovers of a
  // phase cannot fragment the next phase's memory.
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr &&
      std::getenv("PYTORCH_ALLOC_CONF") == nullptr) {
    setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);
  }
  if (dlopen(beside_libtorch("libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    result.reason = std::string("libtorch_cuda.so does not load: ") + dlerror();
    return result;
  }
  if (!at::globalContext().hasCUDA()) {
    result.reason = "libtorch_cuda is loaded but registered no device";
    return result;
  }
  result.devices = static_cast<unsigned char>(at::detail::getCUDAHooks().deviceCount());
  result.available = result.devices > 0;
  if (!result.available)
    result.reason = "libtorch_cuda sees no GPU (is CUDA_VISIBLE_DEVICES empty?)";
  return result;
}

}  // namespace

const TorchCuda& torch_cuda() {
  static const TorchCuda kFound = load();
  return kFound;
}

}  // namespace neap::bridge
