#include "report/chart_panels.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "report/palette.h"

namespace neap::report {
namespace {

constexpr double kBar = 17, kMapHeight = 300;
static_assert(kSegmentMapHeight == kPanelHead + kMapHeight + kGapBelow);

}  // namespace

double settings_height(std::size_t count) {
  return kPanelHead + kBar * static_cast<double>(count) + kGapBelow;
}

double draw_settings(Painter& painter, const std::vector<SettingOutcome>& settings, double y,
                     double width) {
  painter.text(kLeft, y + 18,
               "The same work under other settings: peak reserved, and allocated in it", 13, kInk);
  std::uint64_t most = 1;
  for (const SettingOutcome& s : settings) most = std::max(most, s.peak_reserved.count());
  const double names = width * 0.45, bars = width - names - 90;
  double line = y + kPanelHead;
  for (const SettingOutcome& s : settings) {
    const auto length = [&](Bytes b) {
      return bars * static_cast<double>(b.count()) / static_cast<double>(most);
    };
    painter.text(kLeft + names - 8, line + 11, s.label(), 10.5, kInk, Anchor::kEnd);
    painter.rect(kLeft + names, line + 1, length(s.peak_reserved), kBar - 4,
                 mix(kPeak, kPaper, 0.6));
    painter.rect(kLeft + names, line + 1, length(s.peak_allocated), kBar - 4, kAllocated);
    painter.text(kLeft + names + length(s.peak_reserved) + 6, line + 11,
                 s.out_of_memory ? "out of memory" : s.reserved_text(), 10.5,
                 s.out_of_memory ? kCeiling : kInk);
    line += kBar;
  }
  return line + kGapBelow;
}

double draw_segment_map(Painter& painter, const SegmentMap& map,
                        const std::vector<Color>& layer_colors, double y, double width) {
  painter.text(kLeft, y + 18,
               format("Segments, {}: {} reserved in {}, {} allocated, largest gap {}", map.label,
                      to_string(Bytes(map.reserved)), map.segments.size(),
                      to_string(Bytes(map.allocated)), to_string(Bytes(map.largest_gap))),
               13, kInk);
  constexpr double kRows = 30;
  const double top = y + kPanelHead, row_height = kMapHeight / kRows;
  const double per_row = std::max(1.0, std::ceil(static_cast<double>(map.reserved) / kRows));
  double at = 0;  // bytes placed so far
  const auto span = [&](double begin, double size, const Color& color) {
    while (size > 0) {
      const double row = std::floor(begin / per_row), in_row = begin - row * per_row;
      const double part = std::min(size, per_row - in_row);
      painter.rect(kLeft + in_row / per_row * width, top + row * row_height, part / per_row * width,
                   row_height - 1.5, color);
      begin += part;
      size -= part;
    }
  };
  for (const SegmentMap::Segment& segment : map.segments) {
    const auto size = static_cast<double>(segment.range.size);
    span(at, size, kGap);
    for (const SegmentMap::Block& block : segment.blocks)
      span(at + static_cast<double>(block.offset), static_cast<double>(block.size),
           layer_colors[block.layer]);
    // Draws a thin line where a segment begins.
    span(at, std::min(size, per_row / width * 0.7), kFaint);
    at += size;
  }
  return top + kMapHeight + kGapBelow;
}

}  // namespace neap::report
