// The same measurements through the hook library: its own functions, as PyTorch calls them.
#include <dlfcn.h>

#include <functional>
#include <random>

#include "base/format.h"
#include "bench/cases.h"
#include "bench/plain.h"
#include "neap/neap.h"

namespace neap::bench {
namespace {

using CudaMalloc = int (*)(void**, std::size_t);
using CudaFree = int (*)(void*);

struct Hook {
  decltype(&neap_torch_malloc) take = nullptr;
  decltype(&neap_torch_free) give = nullptr;
  decltype(&neap_region_find) find = nullptr;
  decltype(&neap_scope_enter) enter = nullptr;
  decltype(&neap_scope_exit) leave = nullptr;
  decltype(&neap_last_error) error = nullptr;
  CudaMalloc cuda_malloc = nullptr;  ///< the replacement that LD_PRELOAD installs
  CudaFree cuda_free = nullptr;
};

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Result<Hook> load(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Status(ErrorCode::kNotFound, format("{} cannot be loaded: {}", file, ::dlerror()));
  Hook hook;
  const auto get = [&](auto& function, const char* name) {
    return find_function(library, name, function);
  };
  if (!get(hook.take, "neap_torch_malloc") || !get(hook.give, "neap_torch_free") ||
      !get(hook.find, "neap_region_find") || !get(hook.enter, "neap_scope_enter") ||
      !get(hook.leave, "neap_scope_exit") || !get(hook.error, "neap_last_error") ||
      !get(hook.cuda_malloc, "cudaMalloc") || !get(hook.cuda_free, "cudaFree"))
    return Status(ErrorCode::kUnsupported, format("{} is not this version's hook library", file));
  return hook;
}

/// One way to allocate and free. A failure has its reason.
struct Way {
  std::string take_name, give_name;
  std::function<Result<void*>()> take;
  std::function<Status(void*)> give;
  std::string limit_of_take, limit_of_give;
};

/// Runs `ours` and `plain` alternately. The result is the median of the differences per round.
Status race(Bench& bench, const Way& ours, const Way& plain) {
  Series take, give, plain_take, plain_give, over_take, over_give;
  const auto turn = [](const Way& way, double& take_us, double& give_us) -> Status {
    const Timer a;
    NEAP_TRY_ASSIGN(void* const at, way.take());
    take_us = a.ms() * 1e3;
    const Timer b;
    NEAP_TRY(way.give(at));
    give_us = b.ms() * 1e3;
    return {};
  };
  for (int i = 0; i < bench.cycles() * 20 + 20; ++i) {
    double take_us = 0, give_us = 0, plain_take_us = 0, plain_give_us = 0;
    NEAP_TRY(turn(ours, take_us, give_us));
    NEAP_TRY(turn(plain, plain_take_us, plain_give_us));
    if (i < 20) continue;
    take.add(take_us);
    give.add(give_us);
    plain_take.add(plain_take_us);
    plain_give.add(plain_give_us);
    over_take.add(take_us - plain_take_us);
    over_give.add(give_us - plain_give_us);
  }
  bench.add({"hook",
             ours.take_name,
             "us",
             Better::kLess,
             take,
             plain_take,
             plain.limit_of_take,
             {{"over_us", over_take.median()}}});
  bench.add({"hook",
             ours.give_name,
             "us",
             Better::kLess,
             give,
             plain_give,
             plain.limit_of_give,
             {{"over_us", over_give.median()}}});
  return {};
}

/// Measures one size, with calls as from PyTorch's allocator and as from a program with a hooked
/// cudaMalloc.
Status run_size(Bench& bench, const Hook& hook, Bytes size, bool has_runtime) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto plain, PlainRegion::make(*device, size, true));
  const auto bytes = static_cast<ssize_t>(size.count());
  const auto failure = [&] { return Status(ErrorCode::kOutOfDeviceMemory, hook.error()); };
  const Way driver{"",
                   "",
                   [&]() -> Result<void*> {
                     NEAP_TRY(plain->take());
                     return static_cast<void*>(nullptr);
                   },
                   [&](void*) { return plain->give(); },
                   "reserve, create, map, access by the driver",
                   "wait, unmap, release, unreserve by the driver"};
  const Way pool{format("allocate {}", size),
                 format("free {}", size),
                 [&]() -> Result<void*> {
                   void* const at = hook.take(bytes, 0, nullptr);
                   if (at == nullptr) return failure();
                   return at;
                 },
                 [&](void* at) {
                   hook.give(at, bytes, 0, nullptr);
                   return Status();
                 },
                 "",
                 ""};
  const Way preloaded{format("cudaMalloc {} in a scope", size),
                      format("cudaFree {} of a region", size),
                      [&]() -> Result<void*> {
                        void* at = nullptr;
                        if (hook.cuda_malloc(&at, size.count()) != 0) return failure();
                        return at;
                      },
                      [&](void* at) { return hook.cuda_free(at) == 0 ? Status() : failure(); },
                      "",
                      ""};
  NEAP_TRY(plain->enter());
  Status status = race(bench, pool, driver);
  if (status.ok() && has_runtime) {
    neap_scope scope = NEAP_SCOPE_INIT;
    (void)hook.enter(&scope);
    status = race(bench, preloaded, driver);
    (void)hook.leave();
  }
  plain->leave();
  return status;
}

struct CudaRuntime {
  CudaMalloc take = nullptr;
  CudaFree give = nullptr;
};
Result<CudaRuntime> find_runtime() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
    CudaRuntime runtime;
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && find_function(library, "cudaMalloc", runtime.take) &&
        find_function(library, "cudaFree", runtime.give))
      return runtime;
  }
  return Status(ErrorCode::kNotFound,
                "no libcudart was found (LD_LIBRARY_PATH): the rows of cudaMalloc are left out");
}

/// Cost outside a scope: passing a call on and counting it, compared with the runtime's own call.
Status run_passed_on(Bench& bench, const Hook& hook, const CudaRuntime& runtime) {
  const auto way = [](CudaMalloc take, CudaFree give, const std::string& limit) {
    return Way{"cudaMalloc 2 MiB passed on",
               "cudaFree 2 MiB passed on",
               [take]() -> Result<void*> {
                 void* at = nullptr;
                 if (take(&at, Bytes(2_MiB).count()) != 0)
                   return Status(ErrorCode::kOutOfDeviceMemory, "the CUDA runtime gave no 2 MiB");
                 return at;
               },
               [give](void* at) {
                 return give(at) == 0 ? Status() : Status(ErrorCode::kDriver, "cudaFree failed");
               },
               limit,
               limit};
  };
  return race(bench, way(hook.cuda_malloc, hook.cuda_free, ""),
              way(runtime.take, runtime.give, "the CUDA runtime's own call"));
}

}  // namespace

Status run_hook(Bench& bench) {
  if (bench.settings().hook_library.empty())
    return {ErrorCode::kNotFound, "libneap_hook.so was not found: its rows are left out"};
  NEAP_TRY_ASSIGN(const Hook hook, load(bench.settings().hook_library));
  const auto runtime = find_runtime();
  NEAP_TRY(run_size(bench, hook, 2_MiB, runtime.ok()));
  NEAP_TRY(run_size(bench, hook, 20_MiB, runtime.ok()));

  constexpr std::uint64_t kRegions = 2048;
  constexpr Bytes kEach = 2_MiB;
  std::vector<void*> all;
  for (std::uint64_t i = 0; i < kRegions; ++i) {
    void* const at = hook.take(kEach.count(), 0, nullptr);
    if (at == nullptr) break;
    all.push_back(at);
  }
  if (all.empty()) return {ErrorCode::kOutOfDeviceMemory, hook.error()};
  std::mt19937_64 random(1);
  std::vector<const std::byte*> asked(1 << 14);
  std::vector<const void*> begins;
  for (auto& at : asked) {
    const void* const begin = all[random() % all.size()];
    begins.push_back(begin);
    at = static_cast<const std::byte*>(begin) + random() % kEach.count();
  }
  Series find;
  for (int i = 0; i < bench.cycles(); ++i) {
    bool right = true;
    const Timer timer;
    for (std::size_t k = 0; k < asked.size(); ++k) {
      neap_region region = NEAP_REGION_INIT;
      right = hook.find(asked[k], &region) == NEAP_OK && region.address == begins[k] && right;
    }
    find.add(timer.ms() * 1e6 / static_cast<double>(asked.size()));
    if (!right) return {ErrorCode::kInternal, "the hook found the wrong region"};
  }
  for (void* at : all) hook.give(at, kEach.count(), 0, nullptr);
  bench.add({"hook", "find", "ns", Better::kLess, find, {}, "", {{"regions", all.size()}}});
  if (!runtime.ok()) return runtime.status();
  return run_passed_on(bench, hook, *runtime);
}

}  // namespace neap::bench
