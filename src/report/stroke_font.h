// A font made of strokes: legible at any size, and small enough to embed in the program.
//
// It covers ASCII; any other character is drawn as a box.
#pragma once

#include <functional>
#include <string_view>

#include "report/painter.h"

namespace neap::report {

/// Calls `stroke` for every line of `text`, with points relative to the start of its baseline.
void draw_stroke_text(std::string_view text, double size,
                      const std::function<void(Point, Point)>& stroke);
[[nodiscard]] double stroke_text_width(std::string_view text, double size);

}  // namespace neap::report
