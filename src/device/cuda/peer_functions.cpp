#include "device/cuda/peer_functions.h"

#include <dlfcn.h>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::device::cuda {
namespace {

Result<PeerFunctions> look_up(const Driver& driver) {
  // The library is loaded already. This call finds it again, and the handle stays open.
  void* library = ::dlopen(driver.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Status(ErrorCode::kUnsupported, format("no NVIDIA driver ({})", ::dlerror()));
  PeerFunctions out;
  Symbols symbols(library);
#define NEAP_LOOK_UP(name, symbol, parameters) symbols.find(out.name, symbol);
  NEAP_CUDA_PEER_FUNCTIONS(NEAP_LOOK_UP)
#undef NEAP_LOOK_UP
  if (symbols.missing() != nullptr)
    return Status(
        ErrorCode::kUnsupported,
        format("{} has no {}: the driver is older than CUDA 11.7", driver.path, symbols.missing()));
  return out;
}

}  // namespace

Result<const PeerFunctions*> load_peer_functions(const Driver& driver) {
  static const Result<PeerFunctions> kFunctions = look_up(driver);
  if (!kFunctions.ok()) return kFunctions.status();
  return &*kFunctions;
}

}  // namespace neap::device::cuda
