#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "formulas/sheet.h"

namespace neap::formulas {
namespace {

// Four significant digits, in decimal notation.
std::string digits(double value) {
  return std::abs(value) >= 1000 ? format("{:.0f}", value) : format("{:.4g}", value);
}

std::string bytes_text(double bytes, Scale scale) {
  const double base = scale == Scale::kGib ? 1024 : 1000;
  const char* units[] = {"B", scale == Scale::kGib ? "KiB" : "kB",
                         scale == Scale::kGib ? "MiB" : "MB", scale == Scale::kGib ? "GiB" : "GB"};
  std::size_t unit = 0;
  while (unit < 3 && std::abs(bytes) >= base) {
    bytes /= base;
    ++unit;
  }
  return digits(bytes) + " " + units[unit];
}

std::string value_text(double value, Quantity quantity, Scale scale) {
  if (quantity == Quantity::kBytes) return bytes_text(value, scale);
  if (quantity == Quantity::kRatio) return digits(value);
  if (value >= 1e9) return digits(value / 1e9) + " B";
  return value >= 1e6 ? digits(value / 1e6) + " M" : format("{:.0f}", value);
}

// Writes as many decimals as the publication.
std::string published_text(const Published& published, Quantity quantity, Scale scale) {
  if (quantity != Quantity::kBytes) return value_text(published.value, quantity, scale);
  const double unit = scale == Scale::kGib ? 1024.0 * 1024 * 1024 : 1e9;
  const double last = published.rounded_to / unit;
  const int decimals = last < 1 ? static_cast<int>(std::ceil(-std::log10(last) - 1e-9)) : 0;
  return format("{:.{}f} {}", published.value / unit, decimals,
                scale == Scale::kGib ? "GiB" : "GB");
}

// Aligns columns by their widest cell. `right`: columns aligned to the right.
std::string columns(const std::vector<std::vector<std::string>>& lines,
                    const std::vector<bool>& right, const std::vector<std::string>& below = {}) {
  std::vector<std::size_t> width(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  std::string out;
  for (std::size_t row = 0; row < lines.size(); ++row) {
    std::string text;
    for (std::size_t i = 0; i < lines[row].size(); ++i) {
      text += i == 0 ? "" : "  ";
      text += right[i] ? format("{:>{}}", lines[row][i], width[i])
                       : format("{:<{}}", lines[row][i], width[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += "  " + text + "\n";
    if (row < below.size()) out += below[row];
  }
  return out;
}

std::string or_dash(std::optional<double> value, Quantity quantity, Scale scale) {
  return value ? value_text(*value, quantity, scale) : "-";
}

std::string notes(const Line& line) {
  std::string out;
  if (!line.why.empty()) out += format("      counted: {}\n", line.why);
  if (line.published && !line.published->why.empty())
    out += format("      published: {}\n", line.published->why);
  return out;
}

std::string section_text(const Section& section, Scale scale) {
  const auto any = [&](const auto& has) {
    return std::any_of(section.lines.begin(), section.lines.end(), has);
  };
  const bool measured = any([](const Line& line) { return line.measured.has_value(); });
  const bool published = any([](const Line& line) { return line.published.has_value(); });
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string> below;
  std::vector<bool> right = {false, false, true, true};
  std::vector<std::string> head = {"", "formula", "value", "counted"};
  for (const auto& [shown, title] :
       {std::pair{measured, "measured"}, std::pair{published, "published"}}) {
    if (!shown) continue;
    head.emplace_back(title);
    right.push_back(true);
  }
  head.emplace_back("source");
  right.push_back(false);
  lines.push_back(std::move(head));
  below.emplace_back();
  for (const Line& line : section.lines) {
    std::vector<std::string> row = {line.term, line.formula,
                                    value_text(line.value, line.quantity, scale),
                                    or_dash(line.counted, line.quantity, scale)};
    if (measured)
      row.push_back(or_dash(line.measured ? std::optional(line.measured->value) : std::nullopt,
                            line.quantity, scale));
    if (published)
      row.push_back(line.published ? published_text(*line.published, line.quantity, scale) : "");
    row.push_back(line.source);
    lines.push_back(std::move(row));
    below.push_back(notes(line));
  }
  return section.title + "\n" + columns(lines, right, below) + "\n";
}

std::string by_ranks_text(const StatesByRanks& table, Scale scale) {
  if (table.rows.empty()) return {};
  std::vector<std::vector<std::string>> lines = {{"d", ""}};
  std::vector<bool> right = {false, false};
  for (const std::int64_t ranks : table.ranks) {
    lines.front().push_back(std::to_string(ranks));
    right.push_back(true);
  }
  for (const StatesByRanks::Row& row : table.rows) {
    std::vector<std::string> line = {row.term, row.formula};
    for (const double bytes : row.bytes) line.push_back(bytes_text(bytes, scale));
    lines.push_back(std::move(line));
  }
  return "Model states of a rank by data-parallel ranks d" +
         std::string(table.whole ? "" : ", N: a rank's part by t and p") + "\n" +
         columns(lines, right) + "\n";
}

}  // namespace

std::string to_text(const Sheet& sheet, Scale scale) {
  std::string out = sheet.letters + "\n";
  for (const Section& section : sheet.sections) out += section_text(section, scale);
  out += by_ranks_text(sheet.by_ranks, scale);
  for (const std::string& remark : sheet.remarks) out += remark + "\n";
  out += "counted: the plan of one rank that has whole models, with everything on the device.\n";
  const bool measured =
      std::any_of(sheet.sections.begin(), sheet.sections.end(), [](const Section& section) {
        return std::any_of(section.lines.begin(), section.lines.end(),
                           [](const Line& line) { return line.measured.has_value(); });
      });
  if (measured)
    out +=
        "measured: by a run, the most that its tags and the temporaries of a phase held; what a "
        "rank "
        "has of divided models is counted by the run's plan.\n";
  return out;
}

Json to_json(const Sheet& sheet) {
  Json out = {{"schema", 1},
              {"letters", sheet.letters},
              {"sections", Json::array()},
              {"remarks", sheet.remarks}};
  for (const Section& section : sheet.sections) {
    Json lines = Json::array();
    for (const Line& line : section.lines) {
      constexpr const char* kUnits[] = {"parameters", "bytes", "ratio"};
      Json entry = {{"id", line.id},
                    {"term", line.term},
                    {"formula", line.formula},
                    {"source", line.source},
                    {"unit", kUnits[static_cast<std::size_t>(line.quantity)]},
                    {"value", line.value},
                    {"counted", line.counted ? Json(*line.counted) : Json()},
                    {"measured", Json()},
                    {"why", line.why}};
      if (const auto& m = line.measured)
        entry["measured"] = {{"value", m->value}, {"source", m->source}};
      if (const auto& p = line.published)
        entry["published"] = {{"value", p->value},
                              {"rounded_to", p->rounded_to},
                              {"agrees", p->agrees(line.value)},
                              {"why", p->why}};
      lines.push_back(std::move(entry));
    }
    out["sections"].push_back({{"title", section.title}, {"lines", std::move(lines)}});
  }
  Json rows = Json::array();
  for (const StatesByRanks::Row& row : sheet.by_ranks.rows)
    rows.push_back({{"term", row.term}, {"formula", row.formula}, {"bytes", row.bytes}});
  out["states_by_ranks"] = {{"ranks", sheet.by_ranks.ranks}, {"rows", std::move(rows)}};
  return out;
}

}  // namespace neap::formulas
