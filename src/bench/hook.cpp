// The same through the shared library that programs load: its own functions, as PyTorch calls them.
#include <dlfcn.h>

#include <random>

#include "base/format.h"
#include "bench/cases.h"
#include "bench/plain.h"
#include "neap/neap.h"

namespace neap::bench {
namespace {

struct Hook {
  decltype(&neap_torch_malloc) take = nullptr;
  decltype(&neap_torch_free) give = nullptr;
  decltype(&neap_region_find) find = nullptr;
  decltype(&neap_last_error) error = nullptr;
};

Result<Hook> load(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Status(ErrorCode::kNotFound, format("{} cannot be loaded: {}", file, ::dlerror()));
  Hook hook;
  const auto get = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  if (!get(hook.take, "neap_torch_malloc") || !get(hook.give, "neap_torch_free") ||
      !get(hook.find, "neap_region_find") || !get(hook.error, "neap_last_error"))
    return Status(ErrorCode::kUnsupported, format("{} is not this version's hook library", file));
  return hook;
}

Status run_size(Bench& bench, const Hook& hook, Bytes size) {
  NEAP_TRY_ASSIGN(const auto device, bench.open_device());
  NEAP_TRY_ASSIGN(const auto plain, PlainRegion::make(*device, size, true));
  const auto bytes = static_cast<ssize_t>(size.count());
  Series take, give, plain_take, plain_give, over_take, over_give;
  for (int i = 0; i < bench.cycles() * 20 + 20; ++i) {
    const Timer a;
    void* const at = hook.take(bytes, 0, nullptr);
    const double take_us = a.ms() * 1e3;
    if (at == nullptr) return {ErrorCode::kOutOfDeviceMemory, hook.error()};
    const Timer b;
    hook.give(at, bytes, 0, nullptr);
    const double give_us = b.ms() * 1e3;
    NEAP_TRY(plain->enter());
    const Timer c;
    const Status taken = plain->take();
    const double plain_take_us = c.ms() * 1e3;
    const Timer d;
    const Status given = taken.ok() ? plain->give() : Status();
    const double plain_give_us = d.ms() * 1e3;
    plain->leave();
    NEAP_TRY(Status(taken));
    NEAP_TRY(Status(given));
    if (i < 20) continue;
    take.add(take_us);
    give.add(give_us);
    plain_take.add(plain_take_us);
    plain_give.add(plain_give_us);
    over_take.add(take_us - plain_take_us);
    over_give.add(give_us - plain_give_us);
  }
  bench.add({"hook",
             format("allocate {}", size),
             "us",
             Better::kLess,
             take,
             plain_take,
             "reserve, create, map, access by the driver",
             {{"over_us", over_take.median()}}});
  bench.add({"hook",
             format("free {}", size),
             "us",
             Better::kLess,
             give,
             plain_give,
             "wait, unmap, release, unreserve by the driver",
             {{"over_us", over_give.median()}}});
  return {};
}

}  // namespace

Status run_hook(Bench& bench) {
  if (bench.settings().hook_library.empty())
    return {ErrorCode::kNotFound, "libneap_hook.so was not found: its rows are left out"};
  NEAP_TRY_ASSIGN(const Hook hook, load(bench.settings().hook_library));
  NEAP_TRY(run_size(bench, hook, 2_MiB));
  NEAP_TRY(run_size(bench, hook, 20_MiB));

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
  return {};
}

}  // namespace neap::bench
