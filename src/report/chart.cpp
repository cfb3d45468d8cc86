#include "report/chart.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "report/canvas.h"
#include "report/chart_panels.h"
#include "report/envelope.h"
#include "report/palette.h"
#include "report/svg.h"
#include "report/ticks.h"

namespace neap::report {
namespace {

/// Values shown in one column of pixels.
struct Sample {
  std::size_t leaf = 0;  ///< the leaf with the highest total
  std::uint64_t total_high = 0, reserved_high = 0;
};

struct Frame {
  double left, top, width, height;
  double from, to;     ///< range in seconds
  std::uint64_t most;  ///< bytes at the top of the axis
  [[nodiscard]] double x(double seconds) const {
    return left + (seconds - from) / (to - from) * width;
  }
  [[nodiscard]] double y(std::uint64_t bytes) const {
    return top + height * (1 - static_cast<double>(bytes) / static_cast<double>(most));
  }
};

double seconds_of(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

class Charts {
 public:
  Charts(Painter& painter, const Report& report, const ChartOptions& options);
  void draw();
  static double height(const Report& report, const ChartOptions& options);

 private:
  void sample();
  [[nodiscard]] double column_x(std::size_t i) const {
    return kLeft + plot_width_ * static_cast<double>(i) / static_cast<double>(samples_.size());
  }

  Frame axes(double y, std::string_view title, std::uint64_t most);
  /// Draws the phase band and the time axis below the plot. Returns the position of the next panel.
  double time_axis(const Frame& frame);
  template <class Value>
  void steps(const Frame& frame, const Stroke& stroke, Value value);
  void level(const Frame& frame, std::uint64_t bytes, const Stroke& stroke);
  void cross(const Frame& frame, std::uint64_t ns, std::uint64_t bytes, const Color& color);
  void key(double& x, double y, const Stroke& stroke, const std::string& words);
  /// Draws figure 1 of the paper: reserved, allocated, and reserved without fragmentation.
  double figure(double y);
  /// Draws a mark at each driver allocation, below reserved and as long as the fragmentation. If
  /// several are in one column, the longest is drawn.
  void marks(const Frame& frame);
  /// Draws reserved minus the fragmentation of the last driver allocation, if there are any.
  void without_fragmentation(const Frame& frame);
  double stack(double y);
  /// Lists the shown layers by falling peak, in the space of legend_height.
  double legend(double y);
  static double legend_height(const Report& report, const ChartOptions& options);

  Painter& p_;
  const Report& report_;
  const History& history_;
  const ChartOptions& options_;
  Envelope total_, reserved_;
  std::vector<Color> layer_colors_;
  std::map<std::string, Color> phase_colors_;
  std::vector<Sample> samples_;
  double from_ = 0, to_ = 1, plot_width_ = 0;
};

Charts::Charts(Painter& painter, const Report& report, const ChartOptions& options)
    : p_(painter),
      report_(report),
      history_(report.history),
      options_(options),
      total_(history_.leaves.total_high, history_.leaves.total_low),
      reserved_(history_.leaves.reserved_high, history_.leaves.reserved_low),
      layer_colors_(layer_colors(history_)),
      phase_colors_(phase_colors(history_)) {
  const Leaves& leaves = history_.leaves;
  from_ = options.from_seconds.value_or(leaves.size() > 0 ? seconds_of(leaves.begin_ns[0]) : 0);
  to_ = options.to_seconds.value_or(seconds_of(history_.end_ns));
  if (!(to_ > from_)) to_ = from_ + 1e-6;
  plot_width_ = options.width - kLeft - kRight;
  sample();
}

void Charts::draw() {
  p_.rect(0, 0, options_.width, chart_height(report_, options_), kPaper);
  p_.text(kLeft, 28, report_.title, 18, kInk);
  p_.text(kLeft, 48, report_.subtitle, 12, kFaint);
  double y = kHead;
  if (!report_.is_run) y = figure(y);
  y = stack(y);
  if (!report_.settings.empty()) y = draw_settings(p_, report_.settings, y, plot_width_);
  if (options_.segment_maps)
    for (const SegmentMap& map : history_.maps)
      y = draw_segment_map(p_, map, layer_colors_, y, plot_width_);
}

double Charts::height(const Report& report, const ChartOptions& options) {
  const double timeline = kPanelHead + kPlot + kBand + kAxis + kGapBelow;
  double total = kHead + timeline + legend_height(report, options);
  if (!report.is_run) total += timeline;
  if (!report.settings.empty()) total += settings_height(report.settings.size());
  if (options.segment_maps)
    total += static_cast<double>(report.history.maps.size()) * kSegmentMapHeight;
  return total;
}

void Charts::sample() {
  const Leaves& leaves = history_.leaves;
  if (leaves.size() == 0) return;
  const auto columns = static_cast<std::size_t>(plot_width_ * 2);
  const auto leaf_at = [&](double seconds) {
    const auto ns = static_cast<std::uint64_t>(std::max(0.0, seconds * 1e9));
    const auto it = std::upper_bound(leaves.begin_ns.begin(), leaves.begin_ns.end(), ns);
    return static_cast<std::size_t>(it - leaves.begin_ns.begin());
  };
  for (std::size_t i = 0; i < columns; ++i) {
    const auto at = [&](std::size_t column) {
      return from_ + (to_ - from_) * static_cast<double>(column) / static_cast<double>(columns);
    };
    const std::size_t end = std::max<std::size_t>(1, leaf_at(at(i + 1)));
    const std::size_t begin = std::min(std::max<std::size_t>(1, leaf_at(at(i))) - 1, end - 1);
    const Envelope::Range total = total_.query(begin, end);
    samples_.push_back({total.highest, total.high, reserved_.query(begin, end).high});
  }
}

Frame Charts::axes(double y, std::string_view title, std::uint64_t most) {
  p_.text(kLeft, y + 18, title, 13, kInk);
  const Frame frame{kLeft,
                    y + kPanelHead,
                    plot_width_,
                    kPlot,
                    from_,
                    to_,
                    std::max<std::uint64_t>(1, most + most / 16)};
  for (const std::uint64_t tick : byte_ticks(frame.most, 8)) {
    p_.rect(frame.left, frame.y(tick) - 0.5, frame.width, 1, kGrid);
    p_.text(frame.left - 8, frame.y(tick) + 4, to_string(Bytes(tick)), 11, kFaint, Anchor::kEnd);
  }
  return frame;
}

double Charts::time_axis(const Frame& frame) {
  const double band = frame.top + frame.height + 3;
  for (const PhaseSpan& span : history_.phases) {
    const double x0 = std::max(frame.left, frame.x(seconds_of(span.begin_ns)));
    const double x1 = std::min(frame.left + frame.width, frame.x(seconds_of(span.end_ns)));
    if (span.depth > 0 || x1 - x0 < 0.3) continue;
    const auto color = phase_colors_.find(span.name);
    p_.rect(x0, band, x1 - x0, kBand - 5, color->second);
    if (p_.text_width(span.name, 10) + 6 < x1 - x0) {
      const Color& c = color->second;
      const bool dark = 0.3 * c.red + 0.59 * c.green + 0.11 * c.blue < 140;
      p_.text((x0 + x1) / 2, band + 12.5, span.name, 10, dark ? kPaper : kInk, Anchor::kMiddle);
    }
  }
  const double step = nice_step((to_ - from_) / 8);
  for (double t = std::ceil(from_ / step) * step; t <= to_ + step * 1e-9; t += step) {
    const double x = frame.x(t);
    p_.rect(x - 0.5, band + kBand - 5, 1, 4, kFaint);
    const std::string label = duration_text(std::abs(t) < step * 1e-9 ? 0 : t);
    p_.text(std::min(x, options_.width - 2 - p_.text_width(label, 11) / 2), band + kBand + 11,
            label, 11, kFaint, Anchor::kMiddle);
  }
  return band + kBand + kAxis + kGapBelow - 3;
}

template <class Value>
void Charts::steps(const Frame& frame, const Stroke& stroke, Value value) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const double y = frame.y(value(samples_[i]));
    if (points.empty()) points.push_back({column_x(i), y});
    if (points.back().y == y) continue;
    points.push_back({column_x(i), points.back().y});
    points.push_back({column_x(i), y});
  }
  if (points.empty()) return;
  points.push_back({frame.left + frame.width, points.back().y});
  p_.line(points, stroke);
}

void Charts::level(const Frame& frame, std::uint64_t bytes, const Stroke& stroke) {
  const Point points[] = {{frame.left, frame.y(bytes)}, {frame.left + frame.width, frame.y(bytes)}};
  p_.line(points, stroke);
}

void Charts::cross(const Frame& frame, std::uint64_t ns, std::uint64_t bytes, const Color& color) {
  const double x = frame.x(seconds_of(ns)), y = frame.y(bytes), r = 6;
  if (x < frame.left || x > frame.left + frame.width) return;
  const Point down[] = {{x - r, y - r}, {x + r, y + r}}, up[] = {{x - r, y + r}, {x + r, y - r}};
  for (const auto& [width, c] : {std::pair{5.0, kPaper}, std::pair{2.6, color}}) {
    p_.line(down, {c, width});
    p_.line(up, {c, width});
  }
}

void Charts::key(double& x, double y, const Stroke& stroke, const std::string& words) {
  const Point points[] = {{x, y - 4}, {x + 22, y - 4}};
  p_.line(points, stroke);
  p_.text(x + 28, y, words, 11, kInk);
  x += 28 + p_.text_width(words, 11) + 22;
}

double Charts::figure(double y) {
  const History& h = history_;
  const Frame frame = axes(y, "Reserved and allocated memory; fragmentation at driver allocations",
                           h.peak_reserved);
  std::vector<Column> under;
  for (std::size_t i = 0; i < samples_.size(); ++i)
    under.push_back({column_x(i), frame.y(samples_[i].total_high), frame.y(0)});
  p_.area(under, frame.left + frame.width, mix(kAllocated, kPaper, 0.72));
  marks(frame);
  steps(frame, {kAllocated, 1.4}, [](const Sample& s) { return s.total_high; });
  steps(frame, {kReserved, 2}, [](const Sample& s) { return s.reserved_high; });
  without_fragmentation(frame);
  double x = kLeft + plot_width_ * 0.46;
  key(x, y + 18, {kReserved, 2}, "reserved");
  key(x, y + 18, {kAllocated, 2}, "allocated");
  key(x, y + 18, {kWithout, 2, 3}, "reserved w/o fragmentation");
  key(x, y + 18, {mix(kPeak, kPaper, 0.45), 2}, "fragmentation");
  if (!h.driver_allocations.empty()) {
    level(frame, h.peak_without_fragmentation, {kWithout, 1.6, 3});
    cross(frame, h.peak_without_fragmentation_ns, h.peak_without_fragmentation, kWithout);
  }
  cross(frame, h.peak_reserved_ns, h.peak_reserved, kPeak);
  return time_axis(frame);
}

void Charts::marks(const Frame& frame) {
  const DriverAllocation* longest = nullptr;
  double at = -1;
  const auto put = [&] {
    if (longest == nullptr || longest->fragmentation == 0) return;
    const double top = frame.y(longest->reserved);
    p_.rect(at, top, 0.8, frame.y(longest->reserved - longest->fragmentation) - top,
            mix(kPeak, kPaper, 0.45));
  };
  for (const DriverAllocation& d : history_.driver_allocations) {
    const double x = frame.x(seconds_of(d.time_ns));
    if (x < frame.left || x > frame.left + frame.width) continue;
    if (x - at >= 1) {
      put();
      at = x;
      longest = nullptr;
    }
    if (longest == nullptr || d.fragmentation > longest->fragmentation) longest = &d;
  }
  put();
}

void Charts::without_fragmentation(const Frame& frame) {
  std::vector<Point> points;
  double column = -1;
  for (const DriverAllocation& d : history_.driver_allocations) {
    const double x = frame.x(seconds_of(d.time_ns));
    if (x < frame.left || x > frame.left + frame.width) continue;
    const double y = frame.y(d.reserved - std::min(d.reserved, d.fragmentation));
    if (!points.empty() && x - column < 0.5) {
      points.back().y = std::min(points.back().y, y);
      continue;
    }
    column = x;
    if (!points.empty()) points.push_back({x, points.back().y});
    points.push_back({x, y});
  }
  p_.line(points, {kWithout, 1.6, 3});
}

double Charts::stack(double y) {
  std::uint64_t most = std::max(history_.peak_total, history_.peak_reserved);
  // Skip a ceiling far above the data, which would flatten the chart; the header names it.
  const bool ceiling = report_.plan && !report_.plan->capacity.is_zero() &&
                       report_.plan->capacity.count() < 3 * most;
  if (ceiling) most = std::max(most, report_.plan->capacity.count());
  if (report_.plan) most = std::max(most, report_.plan->peak.count());
  const Frame frame =
      axes(y, report_.is_run ? "Device memory by tag and phase" : "Live blocks by allocating phase",
           most);
  const std::size_t layers = history_.leaves.layer_count;
  std::vector<double> base(samples_.size(), frame.y(0));
  std::vector<std::uint64_t> sums(samples_.size(), 0);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (history_.layers[layer].peak == 0) continue;
    std::vector<Column> columns(samples_.size());
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      sums[i] += history_.leaves.stack[samples_[i].leaf * layers + layer];
      const double top = frame.y(sums[i]);
      columns[i] = {column_x(i), top, base[i]};
      base[i] = top;
    }
    p_.area(columns, frame.left + frame.width, layer_colors_[layer]);
  }
  steps(frame, {kReserved, 1.6}, [](const Sample& s) { return s.reserved_high; });
  double x = kLeft + plot_width_ * 0.55;
  key(x, y + 18, {kReserved, 2}, report_.is_run ? "held from the device" : "reserved");
  if (report_.plan) {
    for (const PhaseSpan& span : history_.phases) {
      const PlanSummary::Phase* planned = report_.plan->find(span.name);
      if (planned == nullptr) continue;
      const Point points[] = {{std::max(frame.left, frame.x(seconds_of(span.begin_ns))),
                               frame.y(planned->peak.count())},
                              {std::min(frame.left + frame.width, frame.x(seconds_of(span.end_ns))),
                               frame.y(planned->peak.count())}};
      if (points[1].x > points[0].x) p_.line(points, {kPlanned, 1.8, 4});
    }
    key(x, y + 18, {kPlanned, 2, 4}, "planned");
  }
  if (ceiling) {
    level(frame, report_.plan->capacity.count(), {kCeiling, 2, 8});
    key(x, y + 18, {kCeiling, 2, 8}, "ceiling");
  }
  return legend(time_axis(frame));
}

double Charts::legend(double y) {
  double x = kLeft, line = y + 4;
  for (std::size_t i = 0; i < history_.layers.size(); ++i) {
    const Layer& layer = history_.layers[i];
    if (layer.peak == 0) continue;
    const std::string words = layer_label(history_, layer) + "  " + to_string(Bytes(layer.peak));
    const double width = p_.text_width(words, 11) + 34;
    if (x + width > kLeft + plot_width_ && x > kLeft) {
      x = kLeft;
      line += kLegendRow;
    }
    p_.rect(x, line - 9, 11, 11, layer_colors_[i]);
    p_.text(x + 17, line, words, 11, kInk);
    x += width;
  }
  return y + legend_height(report_, options_);
}

double Charts::legend_height(const Report& report, const ChartOptions& options) {
  const Canvas measure(1, 1, 1, kPaper);
  double x = 0, rows = 1;
  for (const Layer& layer : report.history.layers) {
    if (layer.peak == 0) continue;
    const double width =
        measure.text_width(layer_label(report.history, layer) + "  " + to_string(Bytes(layer.peak)),
                           11) +
        34;
    if (x + width > options.width - kLeft - kRight && x > 0) {
      x = 0;
      ++rows;
    }
    x += width;
  }
  return rows * kLegendRow + kGapBelow;
}

}  // namespace

double chart_height(const Report& report, const ChartOptions& options) {
  return Charts::height(report, options);
}

void draw_charts(Painter& painter, const Report& report, const ChartOptions& options) {
  Charts(painter, report, options).draw();
}

std::string chart_svg(const Report& report, const ChartOptions& options) {
  SvgPainter painter(options.width, chart_height(report, options), report.title);
  draw_charts(painter, report, options);
  return painter.finish();
}

Result<std::string> chart_png(const Report& report, const ChartOptions& options, double scale) {
  Canvas canvas(options.width, chart_height(report, options), scale, kPaper);
  draw_charts(canvas, report, options);
  return canvas.to_png();
}

}  // namespace neap::report
