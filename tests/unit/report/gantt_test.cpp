// Bars where their times put them, and the beginning of what is too long.
#include "report/gantt.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "report/svg.h"

namespace neap::report {
namespace {

struct Rect {
  double x, y, width, height;
};

class Recorder final : public Painter {
 public:
  void rect(double x, double y, double width, double height, const Color&) override {
    rects.push_back({x, y, width, height});
  }
  void area(std::span<const Column>, double, const Color&) override {}
  void line(std::span<const Point>, const Stroke&) override {}
  void text(double, double, std::string_view words, double, const Color&, Anchor) override {
    texts.emplace_back(words);
  }
  [[nodiscard]] double text_width(std::string_view words, double size) const override {
    return static_cast<double>(words.size()) * size / 2;
  }
  std::vector<Rect> rects;
  std::vector<std::string> texts;
};

Gantt two_rows(std::size_t bars) {
  Gantt out{"two <rows>", {"first", "second"}, {"forward", "backward"}, {}, 0};
  for (std::size_t i = 0; i < bars; ++i) {
    const auto begin = static_cast<double>(i);
    out.bars.push_back({i % 2, i % 2, begin, begin + 1, std::to_string(i)});
    out.seconds = begin + 1;
  }
  return out;
}

TEST(Gantt, BarsAreAsLongAsTheirTimes) {
  const Gantt gantt = two_rows(4);
  Recorder recorder;
  draw(recorder, gantt);
  // Paper, two keys of the legend, two rows, four bars.
  ASSERT_EQ(recorder.rects.size(), 9U);
  const Rect* bars = &recorder.rects[5];
  const double second = bars[1].x - bars[0].x;
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(bars[i].x, bars[0].x + i * second, 1e-9);
    EXPECT_NEAR(bars[i].width, second - 0.5, 1e-9);
    EXPECT_EQ(bars[i].y, bars[i % 2].y);
  }
  EXPECT_LT(bars[0].y, bars[1].y);
  EXPECT_LE(bars[3].x + bars[3].width, size_of(gantt).width);
  EXPECT_DOUBLE_EQ(size_of(gantt).shown, 4);
}

TEST(Gantt, OfALongOneTheBeginningIsDrawn) {
  const Gantt gantt = two_rows(10000);
  const GanttSize size = size_of(gantt);
  EXPECT_LT(size.shown, 1000);
  EXPECT_LT(size.width, 8200);
  Recorder recorder;
  draw(recorder, gantt);
  EXPECT_LT(recorder.rects.size(), 1000U);
  for (const Rect& rect : recorder.rects) EXPECT_LE(rect.x + rect.width, size.width + 1e-9);
  EXPECT_NE(recorder.texts.back().find("of 1e+04 s"), std::string::npos) << recorder.texts.back();
}

TEST(Gantt, SvgHasTheWordsEscaped) {
  const Gantt gantt = two_rows(2);
  const GanttSize size = size_of(gantt);
  SvgPainter svg(size.width, size.height, gantt.title);
  draw(svg, gantt);
  EXPECT_NE(svg.finish().find("two &lt;rows&gt;"), std::string::npos);
}

TEST(Gantt, NothingToDrawIsDrawn) {
  Recorder recorder;
  draw(recorder, {"empty", {"a"}, {"b"}, {}, 0});
  EXPECT_EQ(recorder.rects.size(), 3U);
}

}  // namespace
}  // namespace neap::report
