// Curves of a training over its steps (reward, loss, KL, lengths), as panels of a page.
//
// Memory    a curve stores at most 2 kMostSpans spans for a run of any length; neighbours are
//           merged.
//
// Threads   one owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace neap::report {

/// Values of a metric over neighbouring steps.
struct CurveSpan {
  std::uint64_t first = 0, last = 0;  ///< steps
  std::uint64_t count = 0;
  double sum = 0, low = 0, high = 0;
  [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
  [[nodiscard]] double middle() const {
    return (static_cast<double>(first) + static_cast<double>(last)) / 2;
  }
};

class Curve {
 public:
  static constexpr std::size_t kMostSpans = 256;
  void add(std::uint64_t step, double value);
  [[nodiscard]] const std::vector<CurveSpan>& spans() const { return spans_; }
  [[nodiscard]] double first() const { return first_; }
  [[nodiscard]] double last() const { return last_; }

 private:
  std::vector<CurveSpan> spans_;
  double first_ = 0, last_ = 0;
};

struct CurvePanel {
  struct Named {
    std::string name;
    Curve curve;
  };
  std::string title;
  std::vector<Named> curves;
};

/// Collects rows of metrics.jsonl and validation.jsonl.
class TrainingCurves {
 public:
  /// Adds the numbers of a row to the curves that some panel shows.
  void add(const Json& row);
  /// Panels in the order of the page, without those that have no curve.
  [[nodiscard]] std::vector<CurvePanel> panels() const;

 private:
  std::map<std::string, Curve> curves_;  // by metric
  std::map<std::string, int> panel_of_;  // -1: no panel
};

/// Draws the panel, without its title, as an element of a page.
[[nodiscard]] std::string panel_svg(const CurvePanel& panel);
/// Colour of a panel's curve.
[[nodiscard]] std::string curve_color(std::size_t index);

}  // namespace neap::report
