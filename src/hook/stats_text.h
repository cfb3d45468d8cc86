// The numbers of every open device as text: JSON (docs/hook.md has the schema) and Prometheus.
#pragma once

#include <string>

namespace neap::hook {

/// Free and total memory need a driver call on each device; at exit and in the publisher they are
/// left out.
enum class StatsDetail { kFull, kWithoutDriver };

[[nodiscard]] std::string stats_json(StatsDetail detail);
[[nodiscard]] std::string stats_prometheus();

}  // namespace neap::hook
