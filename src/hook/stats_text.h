// Statistics of every open device as text: JSON (schema in docs/hook.md) and Prometheus.
#pragma once

#include <string>

namespace neap::hook {

/// Free and total memory need a driver call for each device; the publisher and the exit handler omit
/// them.
enum class StatsDetail { kFull, kWithoutDriver };

[[nodiscard]] std::string stats_json(StatsDetail detail);
[[nodiscard]] std::string stats_prometheus();

}  // namespace neap::hook
