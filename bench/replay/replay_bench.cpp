// Events a second on one core: preparing a recording, checking its fidelity, replaying it under
// other settings. Prints JSON lines.
//
//   replay_bench SNAPSHOT [REPEATS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "replay/fidelity.h"
#include "replay/what_if.h"
#include "trace/reader.h"

namespace {

using namespace neap;
using namespace neap::replay;

/// Seconds of each repetition, sorted.
template <class Work>
std::vector<double> measure(int repeats, Work work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 1; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(took.count());  // the first one warms up
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void print(const std::string& what, std::uint64_t events, const std::vector<double>& seconds) {
  const auto rate = [&](double s) { return static_cast<double>(events) / s / 1e6; };
  Json line = {{"bench", what},
               {"events", events},
               {"repeats", seconds.size()},
               {"million_events_per_second_median", rate(seconds[seconds.size() / 2])},
               {"best", rate(seconds.front())},
               {"worst", rate(seconds.back())}};
  std::puts(line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: replay_bench SNAPSHOT [REPEATS]\n", stderr);
    return 2;
  }
  const int repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 10;
  const auto recording = trace::read(argv[1]);
  if (!recording.ok() || recording->devices.empty()) {
    std::fprintf(stderr, "%s\n", recording.status().message().c_str());
    return 1;
  }
  const trace::DeviceRecording& device = recording->devices[0];
  const auto workload = prepare(*recording, device);
  if (!workload.ok()) {
    std::fprintf(stderr, "%s\n", workload.status().message().c_str());
    return 1;
  }
  const std::uint64_t events = workload->allocator_events;
  print("prepare", events,
        measure(repeats, [&] { static_cast<void>(prepare(*recording, device)); }));
  print("fidelity", events,
        measure(repeats, [&] { static_cast<void>(check_fidelity(*workload)); }));
  for (const char* conf :
       {"", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"}) {
    for (const char* empty : {"none", "all"}) {
      const auto scenario = Scenario::make(conf, empty, 0, workload->version);
      if (!scenario.ok()) return 1;
      print(format("what-if {} {}", *conf == '\0' ? "(defaults)" : conf, empty), events,
            measure(repeats, [&] {
              static_cast<void>(run_scenario(*workload, *scenario, Bytes(150'109'880'320)));
            }));
    }
  }
  return 0;
}
