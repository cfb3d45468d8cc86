#include "report/training_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include "report/html.h"
#include "report/load_report.h"
#include "report/run_folder.h"
#include "report/step_log.h"
#include "unit/report/temporary_folder.h"

namespace neap::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Json row(std::uint64_t step, Json metrics) {
  metrics["step"] = step;
  return metrics;
}

TEST(Curve, KeepsEveryPointUntilThereAreMany) {
  Curve curve;
  for (std::uint64_t step = 1; step <= 100; ++step) curve.add(step, static_cast<double>(step));
  ASSERT_EQ(curve.spans().size(), 100u);
  EXPECT_EQ(curve.spans()[41].mean(), 42);
  curve.add(101, std::nan(""));
  EXPECT_EQ(curve.spans().size(), 100u);
}

TEST(Curve, OfALongRunKeepsExtremesAndMeans) {
  Curve curve;
  constexpr std::uint64_t kSteps = 1'000'000;
  double sum = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const double value = step == 777'777 ? 1000 : static_cast<double>(step % 10);
    sum += value;
    curve.add(step, value);
  }
  EXPECT_LE(curve.spans().size(), 2 * Curve::kMostSpans);
  double high = 0, total = 0;
  std::uint64_t count = 0, last = 0;
  for (const CurveSpan& span : curve.spans()) {
    EXPECT_EQ(span.first, last + 1);
    last = span.last;
    high = std::max(high, span.high);
    total += span.sum;
    count += span.count;
  }
  EXPECT_EQ(last, kSteps);
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(high, 1000);
  EXPECT_NEAR(total, sum, 1e-3);
  EXPECT_EQ(curve.first(), 1);
  EXPECT_EQ(curve.last(), 0);
}

TEST(TrainingCurves, DrawsAnyStepsAndValues) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const std::vector<std::vector<std::pair<std::uint64_t, double>>> runs = {
      {{kMost, 1}},
      {{kMost - 3000, 1}, {kMost, 2}},
      {{0, 1}, {kMost, 2}},
      {{1, -1.7e308}, {2, 1.7e308}},
      {{1, -1e300}, {2, 1e300}},
      {{1, 1}, {2, std::nextafter(1, 2)}},
      {{1, 5e-324}, {2, 1e-323}}};
  for (const auto& run : runs) {
    TrainingCurves curves;
    for (const auto& [step, value] : run) curves.add(row(step, {{"train/loss", value}}));
    for (const CurvePanel& panel : curves.panels()) {
      const std::string drawn = panel_svg(panel);
      EXPECT_LT(drawn.size(), 10'000U);
      EXPECT_THAT(drawn, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
    }
  }
}

TEST(TrainingCurves, PutsMetricsOnPanels) {
  TrainingCurves curves;
  for (std::uint64_t step = 1; step <= 3; ++step)
    curves.add(row(step, {{"critic/score/mean", 0.1},
                          {"rewards/math/mean", 1},
                          {"other", 2},
                          {"actor/kl_loss", nullptr},
                          {"actor/ppo_kl", 0.01}}));
  curves.add(row(3, {{"val/score/mean", 0.5}}));
  const auto panels = curves.panels();
  ASSERT_EQ(panels.size(), 3u);
  EXPECT_EQ(panels[0].title, "Reward");
  ASSERT_EQ(panels[0].curves.size(), 2u);
  EXPECT_EQ(panels[0].curves[1].name, "val/score/mean");
  EXPECT_EQ(panels[1].curves[0].name, "rewards/math/mean");
  EXPECT_EQ(panels[2].curves[0].name, "actor/ppo_kl");
  const std::string svg = panel_svg(panels[0]);
  EXPECT_THAT(svg, HasSubstr("aria-label=\"Reward; critic/score/mean from 0.1 to 0.1; "));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(TrainingCurves, TheRewardOfASourceIsNoAccuracy) {
  TrainingCurves curves;
  curves.add(row(1, {{"val-core/math/reward/mean@1", -3.5}, {"val-core/math/acc/mean@1", 0.5}}));
  const auto panels = curves.panels();
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].title, "Reward");
  EXPECT_EQ(panels[0].curves[0].name, "val-core/math/reward/mean@1");
  EXPECT_EQ(panels[1].title, "Accuracy");
  EXPECT_EQ(panels[1].curves[0].name, "val-core/math/acc/mean@1");
}

// The text of each label whose anchor is `anchor`, with its x.
std::vector<std::pair<double, std::string>> labels(const std::string& svg,
                                                   std::string_view anchor) {
  std::vector<std::pair<double, std::string>> out;
  const std::regex text("<text x=\"([0-9.]+)\" y=\"[0-9.]+\" text-anchor=\"" + std::string(anchor) +
                        "\">([^<]*)</text>");
  for (std::sregex_iterator at(svg.begin(), svg.end(), text), end; at != end; ++at)
    out.emplace_back(std::stod((*at)[1]), (*at)[2]);
  return out;
}

TEST(TrainingCurves, LabelsAreWholeAndDiffer) {
  const std::pair<double, double> ranges[] = {{0.99991, 0.99999}, {7, 7},     {7, 7.0000001},
                                              {1e-6, 3e-6},       {-20, 300}, {12345.1, 12345.9}};
  for (const auto& [low, high] : ranges) {
    TrainingCurves curves;
    curves.add(row(1, {{"train/loss", low}}));
    curves.add(row(150'000, {{"train/loss", high}}));
    const std::string svg = panel_svg(curves.panels().at(0));
    std::set<std::string> values;
    const auto all = labels(svg, "end");
    for (const auto& [x, text] : all) values.insert(text);
    EXPECT_GE(values.size(), 2u) << svg;
    EXPECT_EQ(values.size(), all.size()) << svg;
    const auto steps = labels(svg, "middle");
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back().second, "150000");
    // A digit is over 6 wide; the drawing 460.
    EXPECT_LE(steps.back().first + 6 * 6.2 / 2, 460);
  }
}

// A run's folder without a trace.
class RunFolder : public testing::Test {
 protected:
  void SetUp() override {
    write(kPlanFile, R"({"capacity": 100, "peak": 80, "peak_without_offload": 90, "phases": []})");
    write(kPhasesFile, "");
    write(kMetricsFile,
          "{\"step\":1,\"critic/score/mean\":0.1}\n{\"step\":2,\"critic/score/mean\":0.4}\n{\"st");
    write(kValidationFile,
          R"({"step":0,"val/score/mean":0.2,"samples":[{"prompt":"p","response":"r0","score":1}]})"
          "\n"
          R"({"step":1,"val/score/mean":0.3,"samples":[{"prompt":"p","response":"r1","score":1}]})"
          "\n"
          R"({"step":2,"val/score/mean":0.4,"samples":[{"prompt":"p","response":"r2","score":1}]})"
          "\n");
    write(kWarningsFile, "{\"step\":2,\"sign\":\"truncated\",\"warning\":\"70 % are cut\"}\n");
    write(kRolloutsFile,
          "{\"step\":1,\"prompt\":\"2+2?\",\"response\":\"<script>alert(1)</script>\\nfour\","
          "\"ground_truth\":\"4\",\"score\":0.5,\"rewards\":{\"math\":1},\"tokens\":7}\n");
  }
  void write(std::string_view name, std::string_view text) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
  }
  TemporaryFolder folder_;
};

TEST_F(RunFolder, PageHasCurvesWarningsAndTexts) {
  const auto report = load_training(folder_.path());
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->curves.size(), 1u);
  EXPECT_EQ(report->curves[0].curves[0].curve.last(), 0.4);
  ASSERT_EQ(report->samples.size(), 2u);
  EXPECT_EQ(report->samples[1].rollouts[0].response, "r2");
  const std::string curves = curves_html(*report), texts = texts_html(*report);
  EXPECT_THAT(curves, HasSubstr("Step 2: 70 % are cut"));
  EXPECT_THAT(curves, HasSubstr("<figcaption>Reward</figcaption><svg"));
  EXPECT_THAT(texts, HasSubstr("Step 1: 1 responses, score 0.5 (0.5 to 0.5)"));
  EXPECT_THAT(texts, HasSubstr("<td>&lt;script&gt;alert(1)&lt;/script&gt;\nfour</td>"));
  EXPECT_THAT(texts, HasSubstr("math 1, 7 tokens"));
}

TEST_F(RunFolder, ResponsesHaveATruthWhereOneIsKnown) {
  const auto report = load_training(folder_.path());
  ASSERT_TRUE(report.ok()) << report.status().message();
  const std::string texts = texts_html(*report);
  const std::size_t training = texts.find("Responses in training");
  EXPECT_THAT(texts.substr(0, training), Not(HasSubstr(">truth<")));
  EXPECT_THAT(texts.substr(training), HasSubstr(">truth<"));
}

TEST_F(RunFolder, WithoutATraceHasAPage) {
  const auto report = load_report(folder_.path());
  ASSERT_TRUE(report.ok()) << report.status().message();
  const auto page = report_html(*report);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(*page, HasSubstr("<svg class=\"curve\""));
  EXPECT_THAT(*page, Not(HasSubstr("id=\"timeline\"")));
  EXPECT_THAT(*page, testing::EndsWith("</html>\n"));
}

TEST_F(RunFolder, ADamagedFileIsNamed) {
  write(kMetricsFile, "{\"step\":1}\nnonsense\n{\"step\":2}\n");
  EXPECT_THAT(load_training(folder_.path()).status().message(), HasSubstr("metrics.jsonl:2"));
}

}  // namespace
}  // namespace neap::report
