#include "report/palette.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace neap::report {
namespace {

constexpr std::array<Color, 9> kHues = {rgb(0x4477aa), rgb(0x88ccee), rgb(0x44aa99),
                                        rgb(0x117733), rgb(0xddcc77), rgb(0xcc6677),
                                        rgb(0x882255), rgb(0xaa4499), rgb(0x999933)};
constexpr Color kOutside = rgb(0xaab0ba);

bool has_tags(const History& history) {
  return std::any_of(history.layers.begin(), history.layers.end(),
                     [](const Layer& l) { return l.kind == Layer::Kind::kTag; });
}

/// Mixes with white, or with black if `by` is negative.
Color shade(const Color& color, double by) {
  return mix(color, by < 0 ? rgb(0x000000) : rgb(0xffffff), std::abs(by));
}

/// Perceived difference of two colours, from their red, green and blue.
double difference(const Color& a, const Color& b) {
  const double red = (a.red + b.red) / 2.0 / 256;
  const auto square = [](int d) { return static_cast<double>(d) * d; };
  return (2 + red) * square(a.red - b.red) + 4 * square(a.green - b.green) +
         (3 - red) * square(a.blue - b.blue);
}

std::string model_of(const Layer& tag) {
  return tag.name.substr(0, tag.name.find('.'));
}

/// Colours by layer number.
std::map<std::size_t, Color> tag_colors(const History& history) {
  constexpr std::array<double, 4> kShades = {-0.45, 0, 0.45, 0.75};
  std::map<std::string, std::size_t> tags;
  for (const Layer& layer : history.layers)
    if (layer.kind == Layer::Kind::kTag) ++tags[model_of(layer)];
  std::map<std::string, std::pair<std::size_t, std::size_t>> models;  // hue, number of tags so far
  std::map<std::size_t, Color> colors;
  for (std::size_t i = 0; i < history.layers.size(); ++i) {
    const Layer& layer = history.layers[i];
    if (layer.kind != Layer::Kind::kTag) continue;
    const std::string model = model_of(layer);
    auto& [index, used] = models.try_emplace(model, models.size(), 0).first->second;
    const double by = tags[model] == 1 ? 0 : kShades[used++ % kShades.size()];
    colors[i] = shade(spread_hue(index), by);
  }
  return colors;
}

/// From nine hues and their shades, selects the one that differs most from all of `taken`.
Color apart_from(const std::vector<Color>& taken) {
  Color best;
  double most = -1;
  for (const double by : {0.0, -0.4, 0.45}) {
    for (const Color& base : kHues) {
      const Color candidate = shade(base, by);
      double least = 1e9;
      for (const Color& other : taken) least = std::min(least, difference(candidate, other));
      if (least > most) best = candidate;
      most = std::max(most, least);
    }
  }
  return best;
}

}  // namespace

Color hue(std::size_t index) {
  const std::size_t round = index / kHues.size();
  return mix(kHues[index % kHues.size()], rgb(0x000000),
             std::min(0.25 * static_cast<double>(round), 0.6));
}

Color spread_hue(std::size_t index) {
  constexpr std::array<std::size_t, kHues.size()> kOrder = {0, 5, 2, 7, 3, 4, 6, 8, 1};
  return kHues[kOrder[index % kOrder.size()]];
}

std::map<std::string, Color> phase_colors(const History& history) {
  std::map<std::string, Color> colors{{"", kOutside}};
  std::vector<Color> taken;
  for (const auto& [layer, color] : tag_colors(history)) taken.push_back(color);
  const bool tags = !taken.empty();
  std::size_t next = 0;
  for (const PhaseSpan& span : history.phases) {
    const auto [at, is_new] = colors.try_emplace(span.name);
    if (!is_new) continue;
    at->second = tags ? apart_from(taken) : hue(next++);
    taken.push_back(at->second);
  }
  return colors;
}

std::vector<Color> layer_colors(const History& history) {
  const std::map<std::size_t, Color> tags = tag_colors(history);
  const std::map<std::string, Color> phases = phase_colors(history);
  std::vector<Color> colors;
  for (std::size_t i = 0; i < history.layers.size(); ++i) {
    const auto tag = tags.find(i);
    const auto phase = phases.find(history.layers[i].name);
    colors.push_back(tag != tags.end()       ? tag->second
                     : phase == phases.end() ? kOutside
                                             : phase->second);
  }
  return colors;
}

std::string layer_label(const History& history, const Layer& layer) {
  if (layer.kind == Layer::Kind::kTag) return layer.name;
  const bool tags = has_tags(history);
  if (layer.name.empty()) return tags ? "temporary, outside phases" : "outside phases";
  return tags ? "temporary, " + layer.name : "allocated in " + layer.name;
}

}  // namespace neap::report
