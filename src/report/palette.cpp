#include "report/palette.h"

#include <algorithm>
#include <array>

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

}  // namespace

Color hue(std::size_t index) {
  const std::size_t round = index / kHues.size();
  return mix(kHues[index % kHues.size()], rgb(0x000000),
             std::min(0.25 * static_cast<double>(round), 0.6));
}

std::map<std::string, Color> phase_colors(const History& history) {
  std::map<std::string, Color> colors{{"", kOutside}};
  std::size_t next = 0;
  for (const PhaseSpan& span : history.phases)
    if (colors.try_emplace(span.name, hue(next)).second) ++next;
  return colors;
}

std::vector<Color> layer_colors(const History& history) {
  const bool tags = has_tags(history);
  const std::map<std::string, Color> phases = phase_colors(history);
  std::map<std::string, std::pair<std::size_t, std::size_t>> models;  // hue, tags so far
  std::vector<Color> colors;
  for (const Layer& layer : history.layers) {
    if (layer.kind == Layer::Kind::kTag) {
      const std::string model = layer.name.substr(0, layer.name.find('.'));
      auto& [index, used] = models.try_emplace(model, models.size(), 0).first->second;
      colors.push_back(
          mix(hue(index), rgb(0xffffff), std::min(0.28 * static_cast<double>(used++), 0.7)));
    } else {
      const auto phase = phases.find(layer.name);
      const Color color = phase == phases.end() ? kOutside : phase->second;
      colors.push_back(tags ? mix(color, rgb(0xc4c8cf), 0.55) : color);
    }
  }
  return colors;
}

std::string layer_label(const History& history, const Layer& layer) {
  if (layer.kind == Layer::Kind::kTag) return layer.name;
  const bool tags = has_tags(history);
  if (layer.name.empty()) return tags ? "transient, outside phases" : "outside phases";
  return tags ? "transient, " + layer.name : "born in " + layer.name;
}

}  // namespace neap::report
