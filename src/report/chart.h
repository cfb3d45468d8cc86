// Draws the report as one picture: memory with fragmentation, stack by layer, settings, segment
// map.
//
// It works with any Painter. A column of pixels shows the peak of its time, never an average.
#pragma once

#include <optional>

#include "report/painter.h"
#include "report/report.h"

namespace neap::report {

struct ChartOptions {
  double width = 1200;
  /// Time range of the trace to draw; unset: all of it.
  std::optional<double> from_seconds, to_seconds;
  bool segment_maps = false;  ///< draws one panel per map
};

/// Height that draw_charts needs at this width.
[[nodiscard]] double chart_height(const Report& report, const ChartOptions& options);
void draw_charts(Painter& painter, const Report& report, const ChartOptions& options);

[[nodiscard]] std::string chart_svg(const Report& report, const ChartOptions& options = {});
/// `scale`: pixels per point.
[[nodiscard]] Result<std::string> chart_png(const Report& report, const ChartOptions& options = {},
                                            double scale = 1.5);

}  // namespace neap::report
