// A chart of what several workers do over time: a row per worker, a bar per piece of work.
//
// Threads   stateless functions.
//
// Failure   none.
//
// Cost      proportional to the number of drawn bars. Only the beginning of a long plan is drawn,
//           up to the width kWidest.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/painter.h"

namespace neap::report {

struct GanttBar {
  std::size_t row = 0;
  std::size_t kind = 0;
  double begin = 0, end = 0;  ///< seconds
  std::string label;          ///< drawn if it fits
};
struct Gantt {
  std::string title;
  std::vector<std::string> rows, kinds;  ///< names of both
  std::vector<GanttBar> bars;
  double seconds = 0;  ///< total duration
};
struct GanttSize {
  double width = 0, height = 0;  ///< points
  double shown = 0;              ///< seconds that fit in the width
};
/// The scale makes a bar of mean duration wide enough for a number.
[[nodiscard]] GanttSize size_of(const Gantt& gantt);
void draw(Painter& painter, const Gantt& gantt);

}  // namespace neap::report
