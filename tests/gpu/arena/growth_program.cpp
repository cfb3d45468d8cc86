// Cycles of giving device memory up and taking it again, through the arena or by driver calls alone,
// with the process' and the card's memory after some of them: one JSON line a look.
//
//   growth_program arena|plain [--cycles N] [--size BYTES] [--keep] [--no-copy] [--bare-handles]
//
// --keep: pages stay in the page store. --no-copy: nothing is kept on the host. --bare-handles
// (plain): handles that can be neither exported nor reached by RDMA.
#include <malloc.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "arena/arena.h"
#include "base/format.h"
#include "base/json.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"

namespace neap {
namespace {

struct Settings {
  std::string mode;
  std::uint64_t cycles = 1000;
  Bytes size = 64_MiB;
  bool keep = false, copy = true, bare_handles = false;
};

struct Look {
  std::uint64_t free = 0, resident = 0, heap = 0, mappings = 0, device_files = 0;
};

Look look(const device::cuda::Driver& driver) {
  Look now;
  std::size_t total = 0;
  std::size_t free = 0;
  (void)driver.context_synchronize();
  (void)driver.memory_info(&free, &total);
  now.free = free;
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages >> now.resident;
  now.resident *= 4096;
  const struct mallinfo2 heap = ::mallinfo2();
  now.heap = heap.uordblks + heap.hblkhd;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    ++now.mappings;
    if (line.find("/dev/nvidia") != std::string::npos) ++now.device_files;
  }
  return now;
}

/// Prints looks at round numbers of cycles, as differences from the first, after ten to warm up.
class Watch {
 public:
  Watch(const device::cuda::Driver& driver, const Settings& settings)
      : driver_(driver), settings_(settings) {}
  void after(std::uint64_t cycle) {
    if (cycle == 10) first_ = look(driver_);
    for (std::uint64_t unit = 10; cycle > 10 && unit <= cycle; unit *= 10) {
      if (cycle == unit || cycle == 2 * unit || cycle == 5 * unit) return print(cycle, 0);
    }
    if (cycle == settings_.cycles) print(cycle, 0);
  }
  void settled() {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    print(settings_.cycles, 2);
  }

 private:
  static std::int64_t grown(std::uint64_t now, std::uint64_t then) {
    return static_cast<std::int64_t>(now) - static_cast<std::int64_t>(then);
  }
  void print(std::uint64_t cycle, int rested_seconds) {
    const Look now = look(driver_);
    const Json line{{"mode", settings_.mode},
                    {"keep", settings_.keep},
                    {"copy", settings_.copy},
                    {"bare_handles", settings_.bare_handles},
                    {"size", settings_.size.count()},
                    {"cycle", cycle},
                    {"rested_seconds", rested_seconds},
                    {"device_growth", -grown(now.free, first_.free)},
                    {"resident_growth", grown(now.resident, first_.resident)},
                    {"heap_growth", grown(now.heap, first_.heap)},
                    {"mappings_growth", grown(now.mappings, first_.mappings)},
                    {"device_mappings_growth", grown(now.device_files, first_.device_files)}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  const device::cuda::Driver& driver_;
  const Settings& settings_;
  Look first_;
};

Status run_arena(const device::cuda::Driver& driver, const Settings& settings) {
  NEAP_TRY_ASSIGN(const auto device, device::make_cuda_device(0));
  NEAP_TRY_ASSIGN(const auto arena, arena::Arena::make(*device));
  NEAP_TRY(arena
               ->create("w", settings.size,
                        settings.copy ? arena::Policy::kHost : arena::Policy::kDiscard)
               .status());
  arena::PauseOptions options;
  options.release_pages = !settings.keep;
  Watch watch(driver, settings);
  for (std::uint64_t cycle = 1; cycle <= settings.cycles; ++cycle) {
    NEAP_TRY(arena->pause({}, options).status());
    NEAP_TRY(arena->resume({}).status());
    watch.after(cycle);
  }
  watch.settled();
  return {};
}

/// The same calls in the same order, without anything around them.
Status run_plain(const device::cuda::Driver& driver, const Settings& settings, int device) {
  const auto check = [&](int code, const char* what) {
    return device::cuda::to_status(driver, code, what);
  };
  device::cuda::AllocationProperties properties;
  properties.location.id = device;
  if (!settings.bare_handles) {
    properties.handle_types = device::cuda::kHandlePosixDescriptor;
    int rdma = 0;
    NEAP_TRY(
        check(driver.device_attribute(&rdma, device::cuda::kAttributeRdmaWithVirtualMemory, device),
              "asking for RDMA"));
    properties.flags.gpu_direct_rdma = rdma != 0 ? 1 : 0;
  }
  const std::size_t size = settings.size.count();
  const device::cuda::AccessDescription access{{1, device}, 3};
  device::cuda::DevicePtr at = 0;
  NEAP_TRY(check(driver.reserve(&at, size, 0, 0, 0), "reserving"));
  std::vector<std::byte> host(size);
  NEAP_TRY(check(driver.host_register(host.data(), size, 0), "pinning"));
  device::cuda::Stream stream = nullptr;
  NEAP_TRY(check(driver.stream_create(&stream, device::cuda::kStreamNonBlocking), "a stream"));
  device::cuda::Handle handle = 0;
  const auto come = [&]() -> Status {
    if (handle == 0) NEAP_TRY(check(driver.create(&handle, size, &properties, 0), "creating"));
    NEAP_TRY(check(driver.map(at, size, 0, handle, 0), "mapping"));
    NEAP_TRY(check(driver.set_access(at, size, &access, 1), "giving access"));
    if (settings.copy)
      NEAP_TRY(check(driver.copy_to_device_async(at, host.data(), size, stream), "copying"));
    return check(driver.stream_synchronize(stream), "waiting");
  };
  const auto leave = [&]() -> Status {
    NEAP_TRY(check(driver.context_synchronize(), "waiting"));
    if (settings.copy)
      NEAP_TRY(check(driver.copy_to_host_async(host.data(), at, size, stream), "copying"));
    NEAP_TRY(check(driver.stream_synchronize(stream), "waiting"));
    NEAP_TRY(check(driver.unmap(at, size), "unmapping"));
    if (settings.keep) return {};
    NEAP_TRY(check(driver.release(handle), "releasing"));
    handle = 0;
    return {};
  };
  NEAP_TRY(come());
  Watch watch(driver, settings);
  for (std::uint64_t cycle = 1; cycle <= settings.cycles; ++cycle) {
    NEAP_TRY(leave());
    NEAP_TRY(come());
    watch.after(cycle);
  }
  watch.settled();
  return {};
}

Status run(const Settings& settings) {
  NEAP_TRY_ASSIGN(const device::cuda::Driver* driver, device::cuda::load_driver());
  device::cuda::Context context = nullptr;
  int device = 0;
  NEAP_TRY(to_status(*driver, driver->device_get(&device, 0), "opening the GPU"));
  NEAP_TRY(to_status(*driver, driver->context_retain(&context, device), "opening the context"));
  NEAP_TRY(to_status(*driver, driver->context_push(context), "using the context"));
  return settings.mode == "arena" ? run_arena(*driver, settings)
                                  : run_plain(*driver, settings, device);
}

bool read(int argc, char** argv, Settings& settings) {
  if (argc < 2) return false;
  settings.mode = argv[1];
  if (settings.mode != "arena" && settings.mode != "plain") return false;
  for (int i = 2; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--keep") {
      settings.keep = true;
    } else if (name == "--no-copy") {
      settings.copy = false;
    } else if (name == "--bare-handles") {
      settings.bare_handles = true;
    } else if ((name == "--cycles" || name == "--size") && i + 1 < argc) {
      std::uint64_t value = 0;
      const std::string_view text = argv[++i];
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc() ||
          value == 0)
        return false;
      if (name == "--cycles") {
        settings.cycles = value;
      } else {
        settings.size = Bytes(value);
      }
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace neap

int main(int argc, char** argv) {
  neap::Settings settings;
  if (!neap::read(argc, argv, settings)) {
    std::fprintf(stderr,
                 "usage: growth_program arena|plain [--cycles N] [--size BYTES] [--keep] "
                 "[--no-copy] [--bare-handles]\n");
    return 2;
  }
  const neap::Status status = neap::run(settings);
  if (status.ok()) return 0;
  std::fprintf(stderr, "growth_program: %s\n", status.message().c_str());
  return status.code() == neap::ErrorCode::kUnsupported ? 77 : 1;
}
