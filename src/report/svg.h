// A Painter that writes SVG: text stays text, areas are one path each, without scripts and links.
#pragma once

#include "report/painter.h"

namespace neap::report {

class SvgPainter final : public Painter {
 public:
  SvgPainter(double width, double height, std::string_view title);
  void rect(double x, double y, double width, double height, const Color& fill) override;
  void area(std::span<const Column> columns, double end_x, const Color& fill) override;
  void line(std::span<const Point> points, const Stroke& stroke) override;
  void text(double x, double y, std::string_view words, double size, const Color& color,
            Anchor anchor) override;
  [[nodiscard]] double text_width(std::string_view words, double size) const override;
  /// Returns the whole document. Nothing may be drawn afterwards.
  [[nodiscard]] std::string finish();

 private:
  std::string out_;
};

/// Escapes text for XML and HTML: & < > " ' are escaped, control characters are removed.
[[nodiscard]] std::string escape_markup(std::string_view text);

}  // namespace neap::report
