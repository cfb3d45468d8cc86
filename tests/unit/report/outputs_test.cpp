// The forms that a report takes: page, SVG, PNG, Perfetto.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "base/file.h"
#include "report/canvas.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/load_report.h"
#include "report/palette.h"
#include "report/payload.h"
#include "report/perfetto.h"
#include "report/png.h"
#include "report/svg.h"
#include "unit/report/synthetic.h"

namespace neap::report {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kMiB = 1u << 20;

Report run_report() {
  const SyntheticRun run = SyntheticRun::two_steps();
  PlanSummary plan{120_MiB, 148_MiB, 116_MiB, {{"generate", 96_MiB, 20_MiB, 116_MiB}}};
  auto report = make_report(run.recording, "two steps", plan, {});
  EXPECT_TRUE(report.ok()) << report.status().message();
  return std::move(report).value();
}

Report snapshot_report() {
  auto report = load_report(std::filesystem::path(NEAP_SOURCE_DIR) /
                            "tests/data/gpu-snapshots/phases.pickle.gz");
  EXPECT_TRUE(report.ok()) << report.status().message();
  report->settings = {{"", "none", 0, 100_MiB, 80_MiB, 10, 0, 0, false},
                      {"expandable_segments:True", "all", 0.5, 90_MiB, 80_MiB, 11, 2, 1, true}};
  return std::move(report).value();
}

std::string inflate(std::string_view packed, std::size_t size) {
  std::string out(size, '\0');
  uLongf length = size;
  EXPECT_EQ(::uncompress(reinterpret_cast<Bytef*>(out.data()), &length,
                         reinterpret_cast<const Bytef*>(packed.data()), packed.size()),
            Z_OK);
  out.resize(length);
  return out;
}

std::string unbase64(std::string_view text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    group = group << 6 | static_cast<std::uint32_t>(digits.find(c));
    bits += 6;
    if (bits >= 8) out.push_back(static_cast<char>(group >> (bits -= 8)));
  }
  return out;
}

std::string_view between(std::string_view text, std::string_view from, std::string_view to) {
  const std::size_t begin = text.find(from);
  if (begin == std::string_view::npos) return {};
  const std::size_t end = text.find(to, begin + from.size());
  return text.substr(begin + from.size(), end - begin - from.size());
}

/// The page's own column of that name, read back as its script does.
std::vector<std::uint64_t> page_column(const std::string& page, const std::string& wanted) {
  const std::string_view meta_text =
      between(page, "<script type=\"application/json\" id=\"meta\">", "</script>");
  const std::string_view packed =
      between(page, "<script type=\"text/plain\" id=\"payload\">", "</script>");
  const auto meta = parse_json(meta_text, "meta");
  EXPECT_TRUE(meta.ok());
  const std::string bytes = inflate(unbase64(packed), 1u << 26);
  std::size_t at = 0;
  for (const Json& column : (*meta)["columns"]) {
    std::vector<std::uint64_t> values;
    std::uint64_t value = 0;
    for (std::uint64_t i = 0; i < column["count"].get<std::uint64_t>(); ++i) {
      std::uint64_t zigzag = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes.at(at++));
        zigzag |= static_cast<std::uint64_t>(byte & 127u) << shift;
        if (byte < 128) break;
      }
      value += (zigzag >> 1) ^ (~(zigzag & 1) + 1);
      values.push_back(value * column["unit"].get<std::uint64_t>());
    }
    if (column["name"] == wanted) return values;
  }
  ADD_FAILURE() << "no column " << wanted;
  return {};
}

TEST(Html, NeedsNothingFromOutside) {
  for (const Report& report : {run_report(), snapshot_report()}) {
    const auto page = report_html(report);
    ASSERT_TRUE(page.ok()) << page.status().message();
    // Without the numbers, whose base64 may spell anything.
    std::string code = *page;
    const std::string_view packed =
        between(code, "<script type=\"text/plain\" id=\"payload\">", "</script>");
    code.erase(static_cast<std::size_t>(packed.data() - code.data()), packed.size());
    for (const char* const outside :
         {"http:", "https:", "\"//", "'//", "src=", "href=", "action=", "@import", "url(", "fetch(",
          "XMLHttpRequest", "WebSocket", "EventSource", "importScripts", "import(", "<link",
          "<iframe", "<img"})
      EXPECT_THAT(code, Not(HasSubstr(outside)));
    EXPECT_THAT(*page, HasSubstr("default-src 'none'"));
    EXPECT_THAT(*page, testing::StartsWith("<!doctype html>"));
    EXPECT_THAT(*page, testing::EndsWith("</html>\n"));
  }
}

TEST(Html, HoldsTheExactSeries) {
  const Report report = snapshot_report();
  const auto page = report_html(report);
  ASSERT_TRUE(page.ok());
  const Leaves& leaves = report.history.leaves;
  EXPECT_EQ(page_column(*page, "begin"), leaves.begin_ns);
  EXPECT_EQ(page_column(*page, "totalHigh"), leaves.total_high);
  EXPECT_EQ(page_column(*page, "reservedHigh"), leaves.reserved_high);
  const std::vector<std::uint64_t> layer = page_column(*page, "layer1");
  ASSERT_EQ(layer.size(), leaves.size());
  for (std::size_t i = 0; i < layer.size(); ++i)
    ASSERT_EQ(layer[i], leaves.stack[i * leaves.layer_count + 1]);
  const std::vector<std::uint64_t> addresses = page_column(*page, "map0.address");
  ASSERT_EQ(addresses.size(), report.history.maps.at(0).segments.size());
  EXPECT_EQ(addresses[0], report.history.maps[0].segments[0].address);
}

TEST(Html, HostileNamesStayText) {
  SyntheticRun run;
  const std::string evil = "</script><script>alert(1)</script>\"'&\x01\xff";
  run.add(trace::EventKind::kRegionCreate, evil, 0, kMiB);
  run.add(trace::EventKind::kPhaseBegin, evil, 0, 0);
  run.add(trace::EventKind::kAlloc, "", 0x1000, 512);
  auto report = make_report(run.recording, evil, std::nullopt, {});
  ASSERT_TRUE(report.ok());
  const auto page = report_html(*report);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(*page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(chart_svg(*report), Not(HasSubstr("<script")));
  EXPECT_TRUE(parse_json(perfetto_json(*report), "perfetto").ok());
}

TEST(Html, ScriptsBalance) {
  // A cheap look at the page's own code: brackets outside strings and comments close.
  const auto page = report_html(run_report());
  ASSERT_TRUE(page.ok());
  const std::string_view code = between(*page, "<script>\n", "</script>");
  ASSERT_GT(code.size(), 10000u);
  std::string open;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '/' && code.substr(i, 2) == "//")
      i = code.find('\n', i);
    else if (c == '/' && code.substr(i, 2) == "/*")
      i = code.find("*/", i) + 1;
    else if (c == '"' || c == '\'')
      i = code.find(c, i + 1);
    else if (c == '(' || c == '[' || c == '{')
      open.push_back(c);
    else if (c == ')' || c == ']' || c == '}') {
      ASSERT_FALSE(open.empty());
      const char expected = open.back() == '(' ? ')' : open.back() == '[' ? ']' : '}';
      ASSERT_EQ(c, expected) << code.substr(i > 60 ? i - 60 : 0, 60);
      open.pop_back();
    }
    ASSERT_LT(i, code.size());
  }
  EXPECT_TRUE(open.empty());
}

TEST(Payload, RoundTripAtTheEdges) {
  Payload payload;
  const std::vector<std::uint64_t> values{0, ~0ull >> 11, 1, 0, 1ull << 40, (1ull << 40) - 1};
  payload.add("edges", values);
  payload.add("empty", {});
  payload.add("zeros", std::vector<std::uint64_t>(3));
  payload.add("pages", std::vector<std::uint64_t>{2 * kMiB, 8 * kMiB, 4 * kMiB});
  EXPECT_EQ(payload.columns()[3]["unit"], 2 * kMiB);
  const auto packed = payload.to_base64();
  ASSERT_TRUE(packed.ok());
  const std::string page = "<script type=\"application/json\" id=\"meta\">" +
                           Json{{"columns", payload.columns()}}.dump() +
                           "</script><script type=\"text/plain\" id=\"payload\">" + *packed +
                           "</script>";
  EXPECT_EQ(page_column(page, "edges"), values);
  EXPECT_EQ(page_column(page, "pages"), (std::vector<std::uint64_t>{2 * kMiB, 8 * kMiB, 4 * kMiB}));
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("a"), "YQ==");
  EXPECT_EQ(base64("ab"), "YWI=");
  EXPECT_EQ(base64("abc"), "YWJj");
}

TEST(Svg, ShowsTheRun) {
  const Report report = run_report();
  const std::string svg = chart_svg(report);
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  for (const char* const words : {"two steps", "actor.weights", "rollout.kv", "ceiling", "planned",
                                  "train_actor", "Device memory by tag and phase"})
    EXPECT_THAT(svg, HasSubstr(words));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(Svg, ShowsTheSnapshotAndItsCrosses) {
  const Report report = snapshot_report();
  const std::string svg = chart_svg(report);
  EXPECT_THAT(svg, HasSubstr("reserved w/o fragmentation"));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#d32f2f\""));  // the red cross
  EXPECT_THAT(svg, HasSubstr("stroke=\"#d9a400\""));  // the yellow one and its dotted line
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray=\"3\""));
  EXPECT_THAT(svg, HasSubstr("expandable_segments:True + empty_cache: all + fraction 0.5"));
  ChartOptions window;
  window.from_seconds = 0.01;
  window.to_seconds = 0.02;
  window.segment_maps = true;
  EXPECT_THAT(chart_svg(report, window), HasSubstr("Segments, at the peak of reserved"));
}

TEST(Canvas, PaintsWithCoverage) {
  Canvas canvas(10, 10, 1, rgb(0xffffff));
  canvas.rect(2, 2.5, 4, 4, rgb(0x000000));
  EXPECT_EQ(canvas.pixel(3, 4), rgb(0x000000));
  EXPECT_EQ(canvas.pixel(3, 2), rgb(0x808080));
  EXPECT_EQ(canvas.pixel(8, 8), rgb(0xffffff));
  canvas.rect(-5, -5, 100, 100, rgb(0xff0000, 0.5));
  EXPECT_EQ(canvas.pixel(8, 8), rgb(0xff8080));
  const Point dashes[] = {{0.0, 9.5}, {10, 9.5}};
  canvas.line(dashes, {rgb(0x0000ff), 1, 2});
  EXPECT_EQ(canvas.pixel(1, 9).blue, 255);
  EXPECT_NE(canvas.pixel(3, 9), canvas.pixel(1, 9));
}

TEST(Canvas, WritesWords) {
  Canvas canvas(60, 20, 2, rgb(0xffffff));
  canvas.text(2, 15, "Ag1", 12, rgb(0x000000), Anchor::kStart);
  std::size_t dark = 0;
  for (std::uint32_t y = 0; y < canvas.height(); ++y)
    for (std::uint32_t x = 0; x < canvas.width(); ++x) dark += canvas.pixel(x, y).red < 128;
  EXPECT_GT(dark, 60u);
  EXPECT_GT(canvas.text_width("wide words", 12), canvas.text_width("words", 12));
  EXPECT_EQ(canvas.text_width("\xc3\xa9", 12), canvas.text_width("e", 12));  // one box
}

TEST(Png, UnpacksToThePixels) {
  Canvas canvas(3, 2, 1, rgb(0x102030));
  canvas.rect(1, 0, 1, 1, rgb(0xffeedd));
  const auto png = canvas.to_png();
  ASSERT_TRUE(png.ok());
  EXPECT_EQ(png->substr(0, 8), std::string("\x89PNG\r\n\x1a\n", 8));
  EXPECT_EQ(png->substr(12, 4), "IHDR");
  const std::string_view rest = std::string_view(*png).substr(33);
  std::uint32_t length = 0;
  for (int i = 0; i < 4; ++i)
    length = length << 8 | static_cast<unsigned char>(rest[static_cast<std::size_t>(i)]);
  ASSERT_EQ(rest.substr(4, 4), "IDAT");
  const std::string rows = inflate(rest.substr(8, length), 100);
  ASSERT_EQ(rows.size(), 2u * (1 + 9));
  std::string row(rows.substr(1, 9));
  for (std::size_t i = 3; i < 9; ++i) row[i] = static_cast<char>(row[i] + row[i - 3]);
  EXPECT_EQ(row, std::string("\x10\x20\x30\xff\xee\xdd\x10\x20\x30", 9));
  EXPECT_FALSE(encode_png({}, 3, 2).ok());
}

TEST(Perfetto, EventsAreWhole) {
  const Report report = snapshot_report();
  const auto trace = parse_json(perfetto_json(report), "perfetto");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  std::map<std::string, std::size_t> kinds;
  std::uint64_t peak_reserved = 0, peak_allocated = 0;
  for (const Json& event : (*trace)["traceEvents"]) {
    const std::string kind = event["ph"].get<std::string>();
    ++kinds[kind];
    ASSERT_TRUE(event["pid"].is_number() && event["name"].is_string()) << event.dump();
    if (kind == "M") continue;
    ASSERT_TRUE(event["ts"].is_number()) << event.dump();
    if (kind == "X") {
      ASSERT_TRUE(event["dur"].is_number()) << event.dump();
    }
    if (kind == "C" && event["name"] == "reserved")
      peak_reserved = std::max(peak_reserved, event["args"]["bytes"].get<std::uint64_t>());
    if (kind == "C" && event["name"] == "allocated")
      peak_allocated = std::max(peak_allocated, event["args"]["bytes"].get<std::uint64_t>());
  }
  EXPECT_EQ(kinds["X"], report.history.phases.size());
  EXPECT_EQ(kinds["i"], report.history.driver_allocations.size());
  EXPECT_EQ(peak_reserved, report.history.peak_reserved);
  EXPECT_EQ(peak_allocated, report.history.peak_total);
}

TEST(Report, TextAndJson) {
  const Report report = run_report();
  EXPECT_THAT(report.to_text(), HasSubstr("no offloading"));
  EXPECT_THAT(report.to_text(), HasSubstr("train_actor"));
  EXPECT_EQ(report.to_json()["lines"]["ceiling"], 120 * kMiB);
  EXPECT_EQ(report.to_json()["lines"]["measured_peak"], 116 * kMiB);
  EXPECT_THAT(snapshot_report().to_text(), HasSubstr("out of memory"));
}

TEST(Report, OnePeakIsNamedOnceAndAnotherIsExplained) {
  Report report = run_report();
  ASSERT_TRUE(report.lines);
  const auto peaks = [&] {
    std::vector<std::string> names;
    for (const Report::Figure& figure : report.headline())
      if (figure.name.find("peak") != std::string::npos) names.push_back(figure.name);
    return names;
  };
  report.lines->measured_peak = Bytes(report.history.peak_reserved);
  EXPECT_THAT(peaks(), testing::ElementsAre("measured peak", "planned peak", "peak allocated"));
  report.lines->measured_peak = Bytes(report.history.peak_reserved + kMiB);
  EXPECT_EQ(peaks().size(), 4u);
  for (const Report::Figure& figure : report.headline()) {
    if (figure.name == "peak in the trace" || figure.name == "peak of addresses") {
      EXPECT_THAT(figure.meaning, Not(testing::IsEmpty()));
    }
  }
}

TEST(Palette, ColoursOfLayersAreFarApart) {
  History history;
  for (const char* const tag :
       {"actor.weights", "actor.grads", "actor.optimizer", "critic.weights", "critic.grads",
        "critic.optimizer", "reference.weights", "reward.weights", "rollout.kv"})
    history.layers.push_back({Layer::Kind::kTag, tag, 1});
  for (const char* const phase : {"generate", "actor_logp", "ref_logp", "critic_value", "reward",
                                  "train_actor", "train_critic"}) {
    history.layers.push_back({Layer::Kind::kBirthPhase, phase, 1});
    history.phases.emplace_back().name = phase;
  }
  const std::vector<Color> colors = layer_colors(history);
  for (std::size_t a = 0; a < colors.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      const auto apart = [](int x, int y) { return (x - y) * (x - y); };
      EXPECT_GE(apart(colors[a].red, colors[b].red) + apart(colors[a].green, colors[b].green) +
                    apart(colors[a].blue, colors[b].blue),
                40 * 40)
          << history.layers[a].name << " and " << history.layers[b].name;
    }
}

TEST(Settings, ReadFromAReplay) {
  const auto json = parse_json(
      R"({"what_if":[{"conf":"a:1","empty":"none","fraction":0,"peak_reserved":5,"peak_allocated":4,"driver_allocs":3,"driver_frees":2,"retries":1,"oom":false},{"conf":"","empty":"all","peak_reserved":6,"oom":{"event":3}}]})",
      "test");
  ASSERT_TRUE(json.ok());
  const auto settings = read_settings(*json);
  ASSERT_TRUE(settings.ok());
  ASSERT_EQ(settings->size(), 2u);
  EXPECT_EQ((*settings)[0].label(), "a:1");
  EXPECT_EQ((*settings)[1].label(), "default + empty_cache: all");
  EXPECT_TRUE((*settings)[1].out_of_memory);
  EXPECT_FALSE(read_settings(Json::array()).ok());
  EXPECT_THAT(read_settings({{"what_if", {{{"conf", ""}}}}}).status().message(),
              HasSubstr("what_if[0]"));
}

TEST(Settings, OfACutHistoryHaveNoRecordedOneToCompareWith) {
  Json replay = {{"what_if", {{{"conf", ""}, {"peak_reserved", 5u}}}},
                 {"recorded", {{"conf", ""}, {"peak_reserved", 9u}}},
                 {"history_cut", nullptr}};
  EXPECT_EQ(read_settings(replay)->size(), 2u);
  replay["history_cut"] = {{"comparable", true}};
  EXPECT_EQ(read_settings(replay)->size(), 2u);
  replay["history_cut"]["comparable"] = false;
  const auto settings = read_settings(replay);
  ASSERT_TRUE(settings.ok());
  ASSERT_EQ(settings->size(), 1u);
  EXPECT_EQ(settings->front().kind, SettingOutcome::Kind::kTried);
}

}  // namespace
}  // namespace neap::report
