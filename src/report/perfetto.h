// Writes the report as a trace for the Perfetto viewer (ui.perfetto.dev): JSON trace events.
//
// Tracks    counters "reserved", "allocated" and one per layer; spans for phases; instants for
//           driver allocations with their fragmentation. Each leaf of a long trace is written with
//           its lowest and highest point.
#pragma once

#include <string>

#include "report/report.h"

namespace neap::report {

[[nodiscard]] std::string perfetto_json(const Report& report);

}  // namespace neap::report
