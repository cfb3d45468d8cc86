// Panels of a chart without a time axis, and measures that all panels share. Internal to report/.
//
// Lengths are points. Each function draws from `y` on, `width` wide, and returns the position of
// the next panel.
#pragma once

#include <vector>

#include "report/painter.h"
#include "report/report.h"

namespace neap::report {

inline constexpr double kLeft = 84, kRight = 24, kHead = 64, kPanelHead = 30, kPlot = 270,
                        kBand = 22, kAxis = 26, kGapBelow = 14, kLegendRow = 17;

/// Draws a bar per setting: peak reserved, and allocated within it.
double draw_settings(Painter& painter, const std::vector<SettingOutcome>& settings, double y,
                     double width);
[[nodiscard]] double settings_height(std::size_t count);

/// Draws segments one after another, largest first, in rows of equal bytes.
double draw_segment_map(Painter& painter, const SegmentMap& map,
                        const std::vector<Color>& layer_colors, double y, double width);
inline constexpr double kSegmentMapHeight = 344;

}  // namespace neap::report
