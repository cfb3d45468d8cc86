// Panels of a chart without an axis of time, and the measures that all panels share. Internal to report/.
//
// Lengths are points. Each function draws from `y` on, `width` wide, and returns where the next panel
// starts.
#pragma once

#include <vector>

#include "report/painter.h"
#include "report/report.h"

namespace neap::report {

inline constexpr double kLeft = 84, kRight = 24, kHead = 64, kPanelHead = 30, kPlot = 270,
                        kBand = 22, kAxis = 26, kGapBelow = 14, kLegendRow = 17;

/// A bar for each setting: peak reserved, and allocated in it.
double draw_settings(Painter& painter, const std::vector<SettingOutcome>& settings, double y,
                     double width);
[[nodiscard]] double settings_height(std::size_t count);

/// Segments one after another, largest first, in rows of equal bytes.
double draw_segment_map(Painter& painter, const SegmentMap& map,
                        const std::vector<Color>& layer_colors, double y, double width);
inline constexpr double kSegmentMapHeight = 344;

}  // namespace neap::report
