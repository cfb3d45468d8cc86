// Colours of phases and layers. They are distinct for colour-blind readers and in print, and the
// same in HTML, SVG and PNG.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/history.h"
#include "report/painter.h"

namespace neap::report {

/// One of nine hues by index. Further indexes repeat them in a darker shade.
[[nodiscard]] Color hue(std::size_t index);
/// One of the nine hues, in an order where neighbours differ most.
[[nodiscard]] Color spread_hue(std::size_t index);
/// Colours by phase, in the order of first use. If the history has tags, the colours differ clearly
/// from those of tags.
[[nodiscard]] std::map<std::string, Color> phase_colors(const History& history);
/// One colour per layer. Tags of one model ("actor.weights", "actor.grads") are shades of one hue.
/// Live blocks have the color of the phase that allocated them.
[[nodiscard]] std::vector<Color> layer_colors(const History& history);
/// Name of a layer in the legend.
[[nodiscard]] std::string layer_label(const History& history, const Layer& layer);

inline constexpr Color kPaper = rgb(0xffffff), kInk = rgb(0x1f2430), kFaint = rgb(0x6b7280),
                       kGrid = rgb(0xe3e6eb), kReserved = rgb(0x2b2f38), kAllocated = rgb(0x2a7f9e),
                       kCeiling = rgb(0xb3261e), kPeak = rgb(0xd32f2f), kWithout = rgb(0xd9a400),
                       kPlanned = rgb(0x5b3fa8), kGap = rgb(0xe9ecf1);

}  // namespace neap::report
