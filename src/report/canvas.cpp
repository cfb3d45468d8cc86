#include "report/canvas.h"

#include <algorithm>
#include <cmath>

#include "report/png.h"
#include "report/stroke_font.h"

namespace neap::report {

Canvas::Canvas(double width, double height, double scale, const Color& background)
    : scale_(scale),
      width_(static_cast<std::uint32_t>(std::ceil(width * scale))),
      height_(static_cast<std::uint32_t>(std::ceil(height * scale))),
      pixels_(std::size_t{width_} * height_ * 3) {
  for (std::size_t i = 0; i < pixels_.size(); i += 3) {
    pixels_[i] = background.red;
    pixels_[i + 1] = background.green;
    pixels_[i + 2] = background.blue;
  }
}

void Canvas::blend(std::uint32_t x, std::uint32_t y, const Color& color, double coverage) {
  std::uint8_t* const pixel = &pixels_[(std::size_t{y} * width_ + x) * 3];
  const double share = std::clamp(coverage * color.alpha, 0.0, 1.0);
  const auto mixed = [share](std::uint8_t below, std::uint8_t above) {
    return static_cast<std::uint8_t>(std::lround(below + (above - below) * share));
  };
  pixel[0] = mixed(pixel[0], color.red);
  pixel[1] = mixed(pixel[1], color.green);
  pixel[2] = mixed(pixel[2], color.blue);
}

/// Coordinates are pixels. A border inside a pixel covers its fraction of the pixel.
void Canvas::fill(double x0, double y0, double x1, double y1, const Color& color) {
  x0 = std::clamp(x0, 0.0, static_cast<double>(width_));
  x1 = std::clamp(x1, 0.0, static_cast<double>(width_));
  y0 = std::clamp(y0, 0.0, static_cast<double>(height_));
  y1 = std::clamp(y1, 0.0, static_cast<double>(height_));
  if (!(x0 < x1) || !(y0 < y1)) return;
  const auto share = [](double low, double high, std::uint32_t at) {
    return std::min(high, at + 1.0) - std::max(low, static_cast<double>(at));
  };
  for (auto y = static_cast<std::uint32_t>(y0); y < y1; ++y) {
    const double row = share(y0, y1, y);
    for (auto x = static_cast<std::uint32_t>(x0); x < x1; ++x)
      blend(x, y, color, row * share(x0, x1, x));
  }
}

void Canvas::rect(double x, double y, double width, double height, const Color& color) {
  fill(x * scale_, y * scale_, (x + width) * scale_, (y + height) * scale_, color);
}

/// Draws whole columns of pixels, so that neighbours leave no gap. If several columns share a
/// pixel, the highest counts, so that no peak is lost.
void Canvas::area(std::span<const Column> columns, double end_x, const Color& color) {
  if (columns.empty()) return;
  const auto pixel = [this](double x) {
    return static_cast<std::int64_t>(std::clamp(std::floor(x * scale_), 0.0, 1.0 * width_));
  };
  const std::int64_t end = pixel(end_x);
  std::size_t i = 0;
  for (std::int64_t x = pixel(columns[0].x); x < end; ++x) {
    while (i + 1 < columns.size() && pixel(columns[i + 1].x) < x) ++i;
    double top = columns[i].top, bottom = columns[i].bottom;
    for (std::size_t j = i + 1; j < columns.size() && pixel(columns[j].x) <= x; ++j) {
      top = std::min(top, columns[j].top);
      bottom = std::min(bottom, columns[j].bottom);
    }
    const auto left = static_cast<double>(x);
    fill(left, top * scale_, left + 1, bottom * scale_, color);
  }
}

/// Draws a bar with round ends, in pixels. Coverage decreases over one pixel at its edge.
void Canvas::segment(Point a, Point b, double width, const Color& color) {
  const double radius = width / 2;
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length2 = dx * dx + dy * dy;
  const auto first = [](double v) { return static_cast<std::uint32_t>(std::max(0.0, v)); };
  const auto last = [](double v, std::uint32_t limit) {
    return static_cast<std::uint32_t>(std::clamp(std::ceil(v), 0.0, static_cast<double>(limit)));
  };
  for (std::uint32_t y = first(std::min(a.y, b.y) - radius - 1);
       y < last(std::max(a.y, b.y) + radius + 1, height_); ++y) {
    for (std::uint32_t x = first(std::min(a.x, b.x) - radius - 1);
         x < last(std::max(a.x, b.x) + radius + 1, width_); ++x) {
      const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
      const double along = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0;
      const double distance = std::hypot(px - along * dx, py - along * dy);
      const double coverage = std::clamp(radius + 0.5 - distance, 0.0, 1.0);
      if (coverage > 0) blend(x, y, color, coverage);
    }
  }
}

void Canvas::line(std::span<const Point> points, const Stroke& stroke) {
  const double dash = stroke.dash * scale_;
  double walked = 0;  // distance along the whole line, so that dashes continue around corners
  for (std::size_t i = 1; i < points.size(); ++i) {
    const Point a{points[i - 1].x * scale_, points[i - 1].y * scale_};
    const Point b{points[i].x * scale_, points[i].y * scale_};
    const double length = std::hypot(b.x - a.x, b.y - a.y);
    if (dash <= 0) {
      segment(a, b, stroke.width * scale_, stroke.color);
      continue;
    }
    const auto at = [&](double t) {
      return Point{a.x + (b.x - a.x) * t / length, a.y + (b.y - a.y) * t / length};
    };
    for (double begin = 0; begin < length;) {
      const double place = std::fmod(walked + begin, 2 * dash);
      const double end = std::min(length, begin + (place < dash ? dash : 2 * dash) - place + 1e-9);
      if (place < dash) segment(at(begin), at(end), stroke.width * scale_, stroke.color);
      begin = end;
    }
    walked += length;
  }
}

void Canvas::text(double x, double y, std::string_view words, double size, const Color& color,
                  Anchor anchor) {
  const double width = text_width(words, size);
  if (anchor == Anchor::kMiddle) x -= width / 2;
  if (anchor == Anchor::kEnd) x -= width;
  const double pen = std::max(1.0, size * scale_ * 0.085);
  draw_stroke_text(words, size, [&](Point a, Point b) {
    segment({(x + a.x) * scale_, (y + a.y) * scale_}, {(x + b.x) * scale_, (y + b.y) * scale_}, pen,
            color);
  });
}

double Canvas::text_width(std::string_view words, double size) const {
  return stroke_text_width(words, size);
}

Result<std::string> Canvas::to_png() const {
  return encode_png(pixels_, width_, height_);
}

Color Canvas::pixel(std::uint32_t x, std::uint32_t y) const {
  const std::uint8_t* const pixel = &pixels_[(std::size_t{y} * width_ + x) * 3];
  return {pixel[0], pixel[1], pixel[2], 1};
}

}  // namespace neap::report
