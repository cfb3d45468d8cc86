#include "bench/cases.h"

#include <array>

#include "base/format.h"

namespace neap::bench {

std::span<const Case> cases() {
  static constexpr std::array<Case, 13> kCases{
      {{"host_memory", "copies in host memory and the first touch of it", run_host_memory},
       {"lookup", "finding the region that holds an address", run_lookup},
       {"region", "creating and destroying a region", run_region},
       {"hook", "the same, and lookup, through the hook library", run_hook, true},
       {"discard_kept", "pause and resume without contents, pages kept", run_discard},
       {"discard_released", "the same, pages back to the driver and made anew", run_released},
       {"discard_many", "the same as 2 048 small regions, pages kept", run_many},
       {"hand_over", "one set of weights for two users, without a copy", run_hand_over},
       {"backup", "pause and resume with contents kept in host memory", run_backup},
       {"exchange", "one tag out while another comes in", run_exchange},
       {"disk", "pause and resume with contents kept on disk", run_disk},
       {"cache", "the caching allocator on its hot path", run_cache},
       {"replay", "replaying a recorded run", run_replay}}};
  return kCases;
}

Result<std::vector<const Case*>> wanted_cases(const Bench& bench) {
  std::vector<const Case*> wanted;
  for (const std::string& part : bench.settings().filter) {
    const bool known = std::any_of(cases().begin(), cases().end(), [&](const Case& one) {
      return one.name.find(part) != std::string_view::npos;
    });
    if (known) continue;
    std::string names;
    for (const Case& one : cases()) names += (names.empty() ? "" : ", ") + std::string(one.name);
    return Status(ErrorCode::kInvalidArgument,
                  format("no measurement is called \"{}\"; there are {}", part, names));
  }
  for (const Case& one : cases()) {
    const auto& filter = bench.settings().filter;
    const bool asked = filter.empty() || std::any_of(filter.begin(), filter.end(), [&](auto& part) {
                         return one.name.find(part) != std::string_view::npos;
                       });
    if (asked && (bench.cuda() || !one.needs_cuda)) wanted.push_back(&one);
  }
  return wanted;
}

}  // namespace neap::bench
