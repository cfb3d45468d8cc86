// bench_arena: pause, resume, exchange and hand-over against a plain driver loop in the same run.
//
// usage: bench_arena [--device cuda|host] [--divide N] [--cycles N] [--only CASE]
//                    [--revision TEXT]
// JSON lines on stdout. Sizes are those of one H200; --divide makes a rehearsal of them.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/format.h"
#include "bench.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/host/host_device.h"

namespace neap::bench {

void fail(const Status& status) {
  std::fprintf(stderr, "bench_arena: %s\n", status.message().c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

std::unique_ptr<device::Device> open_device(const Setup& setup) {
  if (setup.device == "cuda") return must(device::make_cuda_device(0));
  device::HostOptions options;
  options.capacity = 140_GiB / setup.divide;
  return must(device::make_host_device(options));
}

void report(const Setup& setup, const std::string& name, const std::string& what,
            const std::string& unit, const Series& series, Json extra) {
  Json line;
  line["schema"] = 1;
  line["case"] = name;
  line["what"] = what;
  line["unit"] = unit;
  line["median"] = series.at(0.5);
  line["low"] = series.at(0.0);
  line["high"] = series.at(1.0);
  line["count"] = series.values.size();
  line.update(extra);
  line["environment"] = setup.environment;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "%-24s %-28s %10.3f %s (%.3f to %.3f, %zu)\n", name.c_str(), what.c_str(),
               series.at(0.5), unit.c_str(), series.at(0.0), series.at(1.0), series.values.size());
}

}  // namespace neap::bench

int main(int count, char** words) {
  using namespace neap;
  using namespace neap::bench;
  Setup setup;
  std::string revision = "unknown";
  int child = -1;
  std::string command;
  for (int i = 0; i < count; ++i) command += (i == 0 ? "" : " ") + std::string(words[i]);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string key = words[i];
    const std::string value = words[i + 1];
    if (key == "--device") {
      setup.device = value;
    } else if (key == "--divide") {
      setup.divide = std::max(1ull, std::strtoull(value.c_str(), nullptr, 10));
    } else if (key == "--cycles") {
      setup.cycles = std::max(1, std::atoi(value.c_str()));
    } else if (key == "--only") {
      setup.only = value;
    } else if (key == "--revision") {
      revision = value;
    } else if (key == "--import-child") {
      child = std::atoi(value.c_str());
    } else {
      std::fprintf(stderr, "bench_arena: unknown option %s\n", key.c_str());
      return 2;
    }
  }
  if (child >= 0) return import_child(setup, child);

  setup.environment["device"] = open_device(setup)->info().name;
  if (setup.device == "cuda")
    setup.environment["cuda_driver"] = must(device::cuda::load_driver())->version;
  utsname system{};
  ::uname(&system);
  setup.environment["kernel"] = system.release;
  setup.environment["cores"] = std::thread::hardware_concurrency();
  setup.environment["revision"] = revision;
  setup.environment["command"] = command;
  setup.environment["divide"] = setup.divide;
  setup.environment["unix_time"] = std::time(nullptr);

  const auto wanted = [&](const char* name) { return setup.only.empty() || setup.only == name; };
  if (wanted("lookup")) run_lookup(setup);
  if (wanted("discard")) run_discard(setup);
  if (wanted("hand_over")) run_hand_over(setup, words[0]);
  if (wanted("exchange")) run_exchange(setup);
  if (wanted("backup")) run_backup(setup);
  return 0;
}
