#include "report/html.h"

#include <algorithm>

#include "base/format.h"
#include "report/assets.h"
#include "report/palette.h"
#include "report/payload.h"
#include "report/svg.h"
#include "report/typical_step.h"

namespace neap::report {
namespace {

/// JSON inside a script element: escape everything that could end the element.
std::string script_json(const Json& json) {
  std::string out;
  for (const char c : json_text(json)) c == '<' ? void(out += "\\u003c") : out.push_back(c);
  return out;
}

std::string table_html(const std::vector<std::vector<std::string>>& cells) {
  std::string out = "<div class=\"scroll\"><table>";
  for (std::size_t row = 0; row < cells.size(); ++row) {
    out += row == 0 ? "<thead><tr>" : row == 1 ? "<tbody><tr>" : "<tr>";
    for (std::size_t i = 0; i < cells[row].size(); ++i) {
      const std::string_view tag = row == 0 || i == 0 ? "th" : "td";
      const std::string_view scope = row == 0 ? " scope=\"col\"" : i == 0 ? " scope=\"row\"" : "";
      out += format("<{}{}>{}</{}>", tag, scope, escape_markup(cells[row][i]), tag);
    }
    out += row == 0 ? "</tr></thead>" : "</tr>";
  }
  return out + (cells.size() > 1 ? "</tbody>" : "") + "</table></div>";
}

std::string settings_html(const std::vector<SettingOutcome>& settings) {
  std::uint64_t most = 1;
  for (const SettingOutcome& s : settings) most = std::max(most, s.peak_reserved.count());
  const auto percent = [most](Bytes b) {
    return 100 * static_cast<double>(b.count()) / static_cast<double>(most);
  };
  std::string out =
      "<div class=\"scroll\"><table class=\"settings\"><thead><tr><th scope=\"col\">setting</th>"
      "<th scope=\"col\">peak reserved, allocated in it</th><th scope=\"col\">reserved</th>"
      "<th scope=\"col\">allocated</th><th scope=\"col\">driver allocs</th>"
      "<th scope=\"col\">frees</th><th scope=\"col\">retries</th></tr></thead><tbody>";
  for (const SettingOutcome& s : settings) {
    out += format(
        "<tr><th scope=\"row\">{}</th><td class=\"bar\"><span class=\"outer\" "
        "style=\"width:{:.2f}%\"></span><span class=\"inner\" style=\"width:{:.2f}%\"></span></td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escape_markup(s.label()), percent(s.peak_reserved), percent(s.peak_allocated),
        s.out_of_memory ? "out of memory" : s.reserved_text(), to_string(s.peak_allocated),
        s.driver_allocs, s.driver_frees, s.retries);
  }
  out += "</tbody></table></div>";
  for (const SettingOutcome& s : settings) {
    if (s.why.empty() && s.how.empty()) continue;
    out += format("<h3>{}</h3><p>{}</p>", escape_markup(s.label()), escape_markup(s.why));
    if (s.how.empty()) continue;
    out += "<pre>";
    for (const std::string& line : s.how) out += escape_markup(line) + "\n";
    out += "</pre>";
  }
  return out;
}

/// If a leaf has several driver allocations, keeps the one with the most fragmentation. The rest of
/// the page has the same resolution.
std::vector<DriverAllocation> marks_by_leaf(const History& history) {
  std::vector<DriverAllocation> marks;
  const std::vector<std::uint64_t>& first = history.leaves.first_event;
  std::size_t leaf = 0, leaf_of_last = first.size();
  for (const DriverAllocation& d : history.driver_allocations) {
    while (leaf + 1 < first.size() && first[leaf + 1] <= d.event) ++leaf;
    if (marks.empty() || leaf_of_last != leaf)
      marks.push_back(d);
    else if (d.fragmentation > marks.back().fragmentation)
      marks.back() = d;
    leaf_of_last = leaf;
  }
  return marks;
}

/// If there are more phases than the page can show, keeps the longest. The result is sorted by
/// begin.
std::vector<PhaseSpan> longest_phases(std::vector<PhaseSpan> spans) {
  constexpr std::size_t kMost = 20000;
  if (spans.size() > kMost) {
    std::nth_element(spans.begin(), spans.begin() + kMost, spans.end(),
                     [](const PhaseSpan& a, const PhaseSpan& b) {
                       return a.end_ns - a.begin_ns > b.end_ns - b.begin_ns;
                     });
    spans.resize(kMost);
    std::stable_sort(spans.begin(), spans.end(), [](const PhaseSpan& a, const PhaseSpan& b) {
      return a.begin_ns < b.begin_ns;
    });
  }
  return spans;
}

template <class Item, class Get>
void add_column(Payload& payload, std::string_view name, const std::vector<Item>& items, Get get) {
  std::vector<std::uint64_t> values;
  values.reserve(items.size());
  for (const Item& item : items) values.push_back(get(item));
  payload.add(name, values);
}

void add_leaves(Payload& payload, const Leaves& leaves) {
  payload.add("begin", leaves.begin_ns);
  payload.add("event", leaves.first_event);
  payload.add("peakTime", leaves.peak_ns);
  payload.add("totalHigh", leaves.total_high);
  payload.add("totalLow", leaves.total_low);
  payload.add("reservedHigh", leaves.reserved_high);
  payload.add("reservedLow", leaves.reserved_low);
  std::vector<std::uint64_t> values(leaves.size());
  for (std::size_t layer = 0; layer < leaves.layer_count; ++layer) {
    for (std::size_t i = 0; i < leaves.size(); ++i)
      values[i] = leaves.stack[i * leaves.layer_count + layer];
    payload.add(format("layer{}", layer), values);
  }
}

Json add_map(Payload& payload, const SegmentMap& map, std::size_t index) {
  using Segment = SegmentMap::Segment;
  const auto name = [index](std::string_view column) { return format("map{}.{}", index, column); };
  const std::vector<Segment>& segments = map.segments;
  add_column(payload, name("address"), segments, [](const Segment& s) { return s.address; });
  add_column(payload, name("size"), segments, [](const Segment& s) { return s.range.size; });
  add_column(payload, name("stream"), segments, [](const Segment& s) { return s.range.stream; });
  add_column(payload, name("flags"), segments, [](const Segment& s) {
    return std::uint64_t{s.range.small_pool} | std::uint64_t{s.range.expandable} << 1 |
           std::uint64_t{s.range.pool} << 2;
  });
  add_column(payload, name("blocks"), segments, [](const Segment& s) { return s.blocks.size(); });
  std::vector<SegmentMap::Block> blocks;
  for (const Segment& s : segments) blocks.insert(blocks.end(), s.blocks.begin(), s.blocks.end());
  using Block = SegmentMap::Block;
  add_column(payload, name("offset"), blocks, [](const Block& b) { return b.offset; });
  add_column(payload, name("length"), blocks, [](const Block& b) { return b.size; });
  add_column(payload, name("count"), blocks, [](const Block& b) { return std::uint64_t{b.count}; });
  add_column(payload, name("layer"), blocks, [](const Block& b) {
    return std::uint64_t{b.layer} << 1 | std::uint64_t{b.pending_free};
  });
  return {{"label", map.label},
          {"time", map.time_ns},
          {"reserved", map.reserved},
          {"allocated", map.allocated},
          {"largestGap", map.largest_gap},
          {"wholeFree", map.whole_segments_free},
          {"joined", map.joined}};
}

void add_phases(Payload& payload, const std::vector<PhaseSpan>& spans,
                const std::map<std::string, std::uint64_t>& name_index) {
  add_column(payload, "phaseBegin", spans, [](const PhaseSpan& s) { return s.begin_ns; });
  add_column(payload, "phaseEnd", spans, [](const PhaseSpan& s) { return s.end_ns; });
  add_column(payload, "phaseDepth", spans,
             [](const PhaseSpan& s) { return std::uint64_t{s.depth}; });
  add_column(payload, "phaseName", spans,
             [&](const PhaseSpan& s) { return name_index.find(s.name)->second; });
}

void add_marks(Payload& payload, const std::vector<DriverAllocation>& marks) {
  add_column(payload, "markTime", marks, [](const DriverAllocation& d) { return d.time_ns; });
  add_column(payload, "markEvent", marks, [](const DriverAllocation& d) { return d.event; });
  add_column(payload, "markReserved", marks, [](const DriverAllocation& d) { return d.reserved; });
  add_column(payload, "markFragmentation", marks,
             [](const DriverAllocation& d) { return d.fragmentation; });
}

Json layers_json(const History& h) {
  Json layers = Json::array();
  const std::vector<Color> colors = layer_colors(h);
  for (std::size_t i = 0; i < h.layers.size(); ++i) {
    layers.push_back({{"label", layer_label(h, h.layers[i])},
                      {"color", to_hex(colors[i])},
                      {"peak", h.layers[i].peak}});
  }
  return layers;
}

Json plan_json(const PlanSummary& plan) {
  Json phases = Json::object();
  for (const PlanSummary::Phase& phase : plan.phases) phases[phase.name] = phase.peak.count();
  return {{"capacity", plan.capacity.count()},
          {"peak", plan.peak.count()},
          {"phases", std::move(phases)}};
}

/// Adds the columns that the page draws. Returns their description for the page.
Json add_columns(Payload& payload, const Report& report) {
  const History& h = report.history;
  add_leaves(payload, h.leaves);
  Json names = Json::array(), name_colors = Json::array();
  std::map<std::string, std::uint64_t> name_index;
  for (const auto& [name, color] : phase_colors(h)) {
    name_index[name] = names.size();
    names.push_back(name);
    name_colors.push_back(to_hex(color));
  }
  add_phases(payload, longest_phases(h.phases), name_index);
  add_marks(payload, marks_by_leaf(h));
  Json maps = Json::array();
  for (std::size_t i = 0; i < h.maps.size(); ++i) maps.push_back(add_map(payload, h.maps[i], i));
  const auto step = typical_step(h.phases, report.plan);
  return {{"isRun", report.is_run},
          {"step", step ? Json{step->begin_ns, step->end_ns} : Json(nullptr)},
          {"events", h.events},
          {"end", h.end_ns},
          {"driverAllocs", h.driver_allocs},
          {"layers", layers_json(h)},
          {"phaseNames", std::move(names)},
          {"phaseColors", std::move(name_colors)},
          {"plan", report.plan ? plan_json(*report.plan) : Json(nullptr)},
          {"peakReserved", {{"time", h.peak_reserved_ns}, {"bytes", h.peak_reserved}}},
          {"peakWithout",
           {{"time", h.peak_without_fragmentation_ns}, {"bytes", h.peak_without_fragmentation}}},
          {"maps", std::move(maps)},
          {"columns", payload.columns()}};
}

std::string head_html(const Report& report) {
  const std::string title = escape_markup(report.title);
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:\">\n" +
         format("<title>{} - report</title>\n<style>\n{}</style>\n</head>\n", title, kReportCss);
}

/// Writes title, main figures and notes.
std::string header_html(const Report& report) {
  std::string tiles, notes;
  for (const Report::Figure& figure : report.headline()) {
    tiles += format("<div><dt>{}</dt><dd>{}</dd>", escape_markup(figure.name),
                    escape_markup(figure.value));
    if (!figure.meaning.empty()) tiles += format("<dd>{}</dd>", escape_markup(figure.meaning));
    tiles += "</div>";
  }
  for (const std::string& note : report.notes)
    notes += format("<p class=\"note\">{}</p>", escape_markup(note));
  return format("<header><h1>{}</h1><p>{}</p>{}<dl class=\"tiles\">{}</dl></header>\n",
                escape_markup(report.title), escape_markup(report.subtitle), notes, tiles);
}

std::string tables_html(const Report& report) {
  std::string out;
  if (!report.table.rows.empty())
    out += "<section><h2>Phases</h2>" + table_html(report.table.cells()) + "</section>";
  if (!report.settings.empty())
    out += "<section><h2>The same work under other settings</h2>" + settings_html(report.settings) +
           "</section>";
  return out;
}

}  // namespace

Result<std::string> report_html(const Report& report) {
  Payload payload;
  const Json meta = add_columns(payload, report);
  NEAP_TRY_ASSIGN(const std::string data, payload.to_base64());
  std::string out;
  out.reserve(data.size() + (1u << 17));
  out += head_html(report);
  out += "<body>\n" + header_html(report) + curves_html(report.training);
  if (report.history.events == 0) {
    // Without a trace nothing can be drawn over time.
    return out + tables_html(report) + texts_html(report.training) + "</body>\n</html>\n";
  }
  if (!report.training.curves.empty()) out += "<h2>Memory over time</h2>\n";
  out += kReportBody;
  out += tables_html(report) + texts_html(report.training);
  out += "<script type=\"application/json\" id=\"meta\">" + script_json(meta) + "</script>\n";
  out += "<script type=\"text/plain\" id=\"payload\">" + data + "</script>\n";
  out += "<script>\n";
  out += kReportJs;
  out += "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace neap::report
