// What several workers do when: a row each, a bar for each piece of work.
//
// Threads   functions without state.   Failure   none.
// Cost      proportional to the bars that are drawn: of a long plan the beginning, as wide as kWidest.
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
  std::string label;          ///< drawn where it fits
};
struct Gantt {
  std::string title;
  std::vector<std::string> rows, kinds;  ///< their names
  std::vector<GanttBar> bars;
  double seconds = 0;  ///< of all bars
};
struct GanttSize {
  double width = 0, height = 0;  ///< points
  double shown = 0;              ///< seconds that fit
};
/// A bar of mean length is wide enough for a number.
[[nodiscard]] GanttSize size_of(const Gantt& gantt);
void draw(Painter& painter, const Gantt& gantt);

}  // namespace neap::report
