// What the files of libcudart's stand-in share: calls into the driver's stand-in, found by the dynamic
// loader as the real runtime finds its driver.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace neap::standin {

using Address = std::uint64_t;
using Opaque = std::uint64_t;

inline thread_local int last_error = 0;
inline thread_local int chosen_device = 0;

inline int report(int error) {
  if (error != 0) last_error = error;
  return error;
}

template <class Function>
Function driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* symbol = library != nullptr ? dlsym(library, name) : nullptr;
  if (symbol == nullptr) {
    std::fprintf(stderr, "stand-in libcudart: no %s in libcuda.so.1\n", name);
    std::abort();  // a test's own mistake
  }
  return reinterpret_cast<Function>(symbol);
}
template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  return driver<int (*)(Arguments...)>(name)(arguments...);
}

/// What every runtime call does first: the chosen device's primary context becomes current.
inline int enter() {
  if (const int result = call("cuInit", 0u); result != 0) return result;
  Opaque context = 0;
  if (const int result = call("cuDevicePrimaryCtxRetain", &context, chosen_device); result != 0) {
    return result;
  }
  return call("cuCtxSetCurrent", context);
}

inline Address address(const void* at) {
  return reinterpret_cast<Address>(at);
}

}  // namespace neap::standin
