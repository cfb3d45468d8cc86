#include "hook/cudart.h"

#include <dlfcn.h>

#include <initializer_list>

namespace neap::hook {
namespace {

constexpr const char* kCandidates[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};

}  // namespace

void* find_in_cudart(const char* name) {
  if (void* symbol = ::dlsym(RTLD_NEXT, name)) return symbol;
  // Python loads extension modules with RTLD_LOCAL, which RTLD_NEXT does not search.
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const char* candidate : kCandidates) {
      void* library = ::dlopen(candidate, flags);
      if (library == nullptr) continue;
      // The handle stays open, because its functions are in use.
      if (void* symbol = ::dlsym(library, name)) return symbol;
    }
  }
  return nullptr;
}

int current_device() {
  static CudartFunction<int (*)(int*)> get_device{"cudaGetDevice"};
  int device = 0;
  const auto function = get_device.get();
  if (function == nullptr || function(&device) != kCudaSuccess) return 0;
  return device;
}

}  // namespace neap::hook
