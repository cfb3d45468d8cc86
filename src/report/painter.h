// Drawing interface of charts: the same calls make an SVG file or a PNG picture.
//
// Units     points, origin at the top left, y downwards.
//
// Threads   one owner at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace neap::report {

struct Color {
  std::uint8_t red = 0, green = 0, blue = 0;
  double alpha = 1;
  friend bool operator==(const Color&, const Color&) = default;
};
/// The colour as "#rrggbb".
[[nodiscard]] std::string to_hex(const Color& color);
[[nodiscard]] constexpr Color rgb(std::uint32_t value, double alpha = 1) {
  return {static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 8),
          static_cast<std::uint8_t>(value), alpha};
}
/// Interpolates two colours: `a` at 0, `b` at 1.
[[nodiscard]] Color mix(const Color& a, const Color& b, double share);

struct Point {
  double x = 0, y = 0;
};
/// One column of an area: from `top` to `bottom`, between x and the next column's x.
struct Column {
  double x = 0, top = 0, bottom = 0;
};
struct Stroke {
  Color color;
  double width = 1;
  double dash = 0;  ///< length of a dash and of the following gap; 0: solid
};
enum class Anchor { kStart, kMiddle, kEnd };

class Painter {
 public:
  virtual ~Painter() = default;
  virtual void rect(double x, double y, double width, double height, const Color& fill) = 0;
  /// Columns in order of x; the last one ends at `end_x`.
  virtual void area(std::span<const Column> columns, double end_x, const Color& fill) = 0;
  virtual void line(std::span<const Point> points, const Stroke& stroke) = 0;
  /// `y` is the baseline; `size` the height of a capital letter times 1.4.
  virtual void text(double x, double y, std::string_view words, double size, const Color& color,
                    Anchor anchor = Anchor::kStart) = 0;
  /// Width of the drawn text.
  [[nodiscard]] virtual double text_width(std::string_view words, double size) const = 0;
};

}  // namespace neap::report
