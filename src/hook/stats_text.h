// Statistics of every open device as text: JSON (docs/json.md) or Prometheus.
#pragma once

#include <string>

namespace neap::hook {

/// Reading free and total memory takes a driver call per device. The publisher and the exit handler
/// omit them.
enum class StatsDetail { kFull, kWithoutDriver };

[[nodiscard]] std::string stats_json(StatsDetail detail);
[[nodiscard]] std::string stats_prometheus();

}  // namespace neap::hook
