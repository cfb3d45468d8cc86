// A Painter that draws pixels, with anti-aliased edges and text in the stroke font.
//
// Cost   3 bytes per pixel; drawing touches only the pixels that it covers.
#pragma once

#include <vector>

#include "base/status.h"
#include "report/painter.h"

namespace neap::report {

class Canvas final : public Painter {
 public:
  /// `scale`: pixels per point.
  Canvas(double width, double height, double scale, const Color& background);
  void rect(double x, double y, double width, double height, const Color& fill) override;
  void area(std::span<const Column> columns, double end_x, const Color& fill) override;
  void line(std::span<const Point> points, const Stroke& stroke) override;
  void text(double x, double y, std::string_view words, double size, const Color& color,
            Anchor anchor) override;
  [[nodiscard]] double text_width(std::string_view words, double size) const override;

  [[nodiscard]] Result<std::string> to_png() const;
  [[nodiscard]] Color pixel(std::uint32_t x, std::uint32_t y) const;
  [[nodiscard]] std::uint32_t width() const { return width_; }
  [[nodiscard]] std::uint32_t height() const { return height_; }

 private:
  void fill(double x0, double y0, double x1, double y1, const Color& color);
  void segment(Point a, Point b, double width, const Color& color);
  void blend(std::uint32_t x, std::uint32_t y, const Color& color, double coverage);
  double scale_;
  std::uint32_t width_, height_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace neap::report
