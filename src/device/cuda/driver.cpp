#include "device/cuda/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/format.h"
#include "base/symbols.h"

namespace neap::device::cuda {
namespace {

constexpr int kOutOfMemory = 2;
constexpr int kDeinitialized = 4;
// After these errors the context is unusable: ECC error, illegal address, launch timeout, destroyed context, assert,
// hardware stack error, illegal instruction, misaligned address, invalid address space, invalid pc, launch failure.
constexpr std::array<int, 11> kSticky{214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

Result<const Driver*> load() {
  const char* wanted = std::getenv("NEAP_LIBCUDA");
  const std::string file = wanted != nullptr && *wanted != '\0' ? wanted : "libcuda.so.1";
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(ErrorCode::kUnsupported, format("no NVIDIA driver ({})", ::dlerror()));
  }
  auto* driver = new Driver;  // never deleted: destructors of static objects may call it
  driver->path = file;
  Symbols symbols(library);
#define NEAP_LOAD(name, symbol, parameters) symbols.find(driver->name, symbol);
  NEAP_CUDA_DRIVER_FUNCTIONS(NEAP_LOAD)
#undef NEAP_LOAD
  driver->launch_with =
      reinterpret_cast<decltype(driver->launch_with)>(::dlsym(library, "cuLaunchKernelEx"));
  if (symbols.missing() != nullptr) {
    delete driver;
    return Status(ErrorCode::kUnsupported,
                  format("{} has no {}; Neap needs the driver of CUDA 11.4 or newer", file,
                         symbols.missing()));
  }
  if (const Result32 code = driver->init(0); code != 0) {
    Status status = to_status(*driver, code, "starting the CUDA driver");
    delete driver;
    return Status(ErrorCode::kUnsupported, status.message());
  }
  (void)driver->driver_version(&driver->version);
  return driver;
}

}  // namespace

Result<const Driver*> load_driver() {
  static const Result<const Driver*> kDriver = load();
  return kDriver;
}

Status to_status(const Driver& driver, Result32 code, std::string_view what) {
  if (code == 0) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(code, &name) != 0 || name == nullptr) name = "unknown error";
  if (driver.error_text(code, &text) != 0 || text == nullptr) text = "no description";
  ErrorCode kind = ErrorCode::kDriver;
  if (code == kOutOfMemory) kind = ErrorCode::kOutOfDeviceMemory;
  if (code == kDeinitialized || std::find(kSticky.begin(), kSticky.end(), code) != kSticky.end()) {
    kind = ErrorCode::kDeviceLost;
  }
  return Status::driver(kind, format("{} failed: {} ({}, {})", what, text, name, code), code);
}

}  // namespace neap::device::cuda
