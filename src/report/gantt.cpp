#include "report/gantt.h"

#include <algorithm>

#include "base/format.h"
#include "report/palette.h"

namespace neap::report {
namespace {

constexpr double kLabels = 70, kTop = 44, kRow = 18, kGapOfRows = 3, kMargin = 12,
                 kFootOfGantt = 24;
constexpr double kBarLength = 14;  // for a bar of mean duration
constexpr double kNarrowest = 480, kWidest = 8000;
constexpr double kWords = 9;

double points_a_second(const Gantt& gantt) {
  double sum = 0;
  for (const GanttBar& bar : gantt.bars) sum += bar.end - bar.begin;
  if (sum <= 0 || gantt.seconds <= 0) return 1;
  return std::max(kBarLength * static_cast<double>(gantt.bars.size()) / sum,
                  kNarrowest / gantt.seconds);
}

}  // namespace

GanttSize size_of(const Gantt& gantt) {
  const double scale = points_a_second(gantt);
  const double width = std::min(gantt.seconds * scale, kWidest);
  return {kLabels + width + kMargin,
          kTop + static_cast<double>(gantt.rows.size()) * kRow + kFootOfGantt, width / scale};
}

void draw(Painter& painter, const Gantt& gantt) {
  const double scale = points_a_second(gantt);
  const GanttSize size = size_of(gantt);
  painter.rect(0, 0, size.width, size.height, kPaper);
  painter.text(kMargin, 16, gantt.title, 12, kInk);
  double x = kMargin;
  for (std::size_t kind = 0; kind < gantt.kinds.size(); ++kind) {
    painter.rect(x, 24, 10, 10, hue(kind));
    painter.text(x + 14, 33, gantt.kinds[kind], kWords, kFaint);
    x += 36 + painter.text_width(gantt.kinds[kind], kWords);
  }
  const auto top_of = [](std::size_t row) { return kTop + static_cast<double>(row) * kRow; };
  const double end = kLabels + size.shown * scale;
  for (std::size_t row = 0; row < gantt.rows.size(); ++row) {
    painter.text(kMargin, top_of(row) + 12, gantt.rows[row], kWords, kInk);
    painter.rect(kLabels, top_of(row), end - kLabels, kRow - kGapOfRows, kGap);
  }
  for (const GanttBar& bar : gantt.bars) {
    if (bar.begin >= size.shown) continue;
    const double from = kLabels + bar.begin * scale;
    const double width = kLabels + std::min(bar.end, size.shown) * scale - from;
    // Leave half a point between adjacent bars, in the background colour.
    painter.rect(from, top_of(bar.row), std::max(width - 0.5, 0.5), kRow - kGapOfRows,
                 hue(bar.kind));
    if (painter.text_width(bar.label, kWords - 2) + 2 < width)
      painter.text(from + width / 2, top_of(bar.row) + 11, bar.label, kWords - 2, kPaper,
                   Anchor::kMiddle);
  }
  const double foot = top_of(gantt.rows.size()) + 14;
  painter.text(kLabels, foot, "0", kWords, kFaint);
  painter.text(end, foot,
               size.shown < gantt.seconds * (1 - 1e-9)
                   ? format("{:.4g} of {:.4g} s", size.shown, gantt.seconds)
                   : format("{:.4g} s", gantt.seconds),
               kWords, kFaint, Anchor::kEnd);
}

}  // namespace neap::report
