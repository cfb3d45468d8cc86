// The report as a trace for the Perfetto viewer (ui.perfetto.dev): JSON trace events.
//
// Tracks    counters "reserved", "allocated" and one a layer; spans for phases; instants for driver
//           allocations with their fragmentation. Long traces are written leaf by leaf, each with its
//           lowest and its highest moment.
#pragma once

#include <string>

#include "report/report.h"

namespace neap::report {

[[nodiscard]] std::string perfetto_json(const Report& report);

}  // namespace neap::report
