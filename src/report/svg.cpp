#include "report/svg.h"

#include <cmath>

#include "base/format.h"
#include "report/stroke_font.h"

namespace neap::report {
namespace {

/// Writes at most two decimals: a hundredth of a point is invisible, and paths stay short.
std::string number(double value) {
  std::string text = format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string fill_of(const Color& color) {
  return color.alpha >= 1
             ? format("fill=\"{}\"", to_hex(color))
             : format("fill=\"{}\" fill-opacity=\"{}\"", to_hex(color), number(color.alpha));
}

}  // namespace

std::string to_hex(const Color& color) {
  return format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue);
}

Color mix(const Color& a, const Color& b, double share) {
  const auto between = [share](std::uint8_t from, std::uint8_t to) {
    return static_cast<std::uint8_t>(std::lround(from + (to - from) * share));
  };
  return {between(a.red, b.red), between(a.green, b.green), between(a.blue, b.blue),
          a.alpha + (b.alpha - a.alpha) * share};
}

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out.push_back(c);
    }
  }
  return out;
}

SvgPainter::SvgPainter(double width, double height, std::string_view title) {
  out_ = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, "
      "'Helvetica Neue', Arial, sans-serif\">\n<title>{2}</title>\n",
      number(width), number(height), escape_markup(title));
}

void SvgPainter::rect(double x, double y, double width, double height, const Color& fill) {
  out_ += format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>\n", number(x), number(y),
                 number(width), number(height), fill_of(fill));
}

void SvgPainter::area(std::span<const Column> columns, double end_x, const Color& fill) {
  if (columns.empty()) return;
  // The path goes right along the tops and back along the bottoms. Columns of equal height are
  // merged.
  std::string path = format("M{} {}", number(columns[0].x), number(columns[0].top));
  for (std::size_t i = 1; i < columns.size(); ++i) {
    if (columns[i].top == columns[i - 1].top) continue;
    path += format("H{}V{}", number(columns[i].x), number(columns[i].top));
  }
  path += format("H{}V{}", number(end_x), number(columns.back().bottom));
  for (std::size_t i = columns.size(); i-- > 1;) {
    if (columns[i].bottom == columns[i - 1].bottom) continue;
    path += format("H{}V{}", number(columns[i].x), number(columns[i - 1].bottom));
  }
  out_ += format("<path d=\"{}H{}Z\" {}/>\n", path, number(columns[0].x), fill_of(fill));
}

void SvgPainter::line(std::span<const Point> points, const Stroke& stroke) {
  if (points.size() < 2) return;
  std::string path;
  for (std::size_t i = 0; i < points.size(); ++i)
    path += format("{}{} {}", i == 0 ? "M" : "L", number(points[i].x), number(points[i].y));
  out_ += format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"", path,
                 to_hex(stroke.color), number(stroke.width));
  if (stroke.color.alpha < 1) out_ += format(" stroke-opacity=\"{}\"", number(stroke.color.alpha));
  if (stroke.dash > 0) out_ += format(" stroke-dasharray=\"{}\"", number(stroke.dash));
  out_ += "/>\n";
}

void SvgPainter::text(double x, double y, std::string_view words, double size, const Color& color,
                      Anchor anchor) {
  const std::string_view side = anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
                                : anchor == Anchor::kEnd  ? " text-anchor=\"end\""
                                                          : "";
  out_ += format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" {}{}>{}</text>\n", number(x), number(y),
                 number(size), fill_of(color), side, escape_markup(words));
}

double SvgPainter::text_width(std::string_view words, double size) const {
  return stroke_text_width(words, size);
}

std::string SvgPainter::finish() {
  out_ += "</svg>\n";
  return std::move(out_);
}

}  // namespace neap::report
