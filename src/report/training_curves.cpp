#include "report/training_curves.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "base/format.h"
#include "report/palette.h"
#include "report/svg.h"
#include "report/ticks.h"

namespace neap::report {
namespace {

constexpr std::size_t kMostCurves = 8;  // per panel

struct PanelKind {
  std::string_view title;
  std::vector<std::string_view> metrics;  // "*" matches any text
};

const std::vector<PanelKind>& panel_kinds() {
  static const std::vector<PanelKind> kKinds = {
      {"Reward", {"critic/score/mean", "val/score/mean", "val-core/*/reward/*"}},
      {"Reward by function", {"rewards/*/mean"}},
      {"Accuracy",
       {"train/accuracy", "train/mean_token_accuracy", "rewards/accuracies", "rewards/*/acc",
        "val/accuracy", "val/mean_token_accuracy", "val/rewards/accuracies", "val/acc/*",
        "val-core/*/acc/*"}},
      {"Loss", {"train/loss", "actor/pg_loss", "val/loss"}},
      {"Loss of the critic", {"critic/vf_loss"}},
      {"Margin of chosen over rejected",
       {"rewards/margins", "train/margin", "val/rewards/margins"}},
      {"KL, nats a token",
       {"actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty", "val/kl_per_token"}},
      {"Length of responses, tokens",
       {"response_length/mean", "response_length/max", "val/response_length"}},
      {"Entropy, nats a token", {"actor/entropy"}},
      {"Shares", {"response_length/truncated_ratio", "frac_reward_zero_std", "actor/pg_clipfrac"}},
      {"Norm of gradients", {"actor/grad_norm", "critic/grad_norm", "train/grad_norm"}},
      {"Learning rate", {"actor/lr", "critic/lr", "train/lr"}},
      {"Seconds of a step", {"timing_s/*"}}};
  return kKinds;
}

bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (std::size_t end = star + 1; end <= name.size(); ++end)
    if (matches(pattern.substr(star + 1), name.substr(end))) return true;
  return false;
}

int find_panel(std::string_view name) {
  const auto& kinds = panel_kinds();
  for (std::size_t i = 0; i < kinds.size(); ++i)
    for (const std::string_view pattern : kinds[i].metrics)
      if (matches(pattern, name)) return static_cast<int>(i);
  return -1;
}

// Coordinates of a panel's points.
struct CurveFrame {
  static constexpr double kWidth = 460, kHeight = 200, kLeft = 56, kRight = 12, kTop = 8,
                          kBottom = 22;
  double from = 0, to = 1, low = 0, high = 1;

  [[nodiscard]] double x(double step) const {
    return kLeft + (step - from) / (to - from) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double value) const {
    return kHeight - kBottom - (value - low) / (high - low) * (kHeight - kTop - kBottom);
  }
};

CurveFrame frame_of(const CurvePanel& panel) {
  CurveFrame out{1e300, -1e300, 1e300, -1e300};
  for (const auto& [name, curve] : panel.curves) {
    for (const CurveSpan& span : curve.spans()) {
      out.from = std::min(out.from, static_cast<double>(span.first));
      out.to = std::max(out.to, static_cast<double>(span.last));
      out.low = std::min(out.low, span.low);
      out.high = std::max(out.high, span.high);
    }
  }
  // Steps of 2^53 and more are not exact in a double.
  constexpr double kLeastWidth = 1e-9;
  if (out.to <= out.from) out.to = out.from + std::max(1.0, out.from * kLeastWidth);
  if (out.low > 0 && out.low < 0.4 * out.high) out.low = 0;
  const double extent = out.high - out.low;
  const double size = std::max(std::abs(out.high), std::abs(out.low));
  // A smaller extent is noise of a constant curve.
  constexpr double kLeastExtent = 1e-5;
  const double margin = extent > kLeastExtent * size ? 0.04 * extent : std::max(size * 0.1, 1e-9);
  out.high += margin;
  if (out.low != 0) out.low -= margin;
  return out;
}

std::string at(const CurveFrame& frame, double step, double value) {
  return format("{:.1f} {:.1f}", frame.x(step), frame.y(value));
}

// Multiples of `step` from `low` to `high`. Their number stays small at the limits of double
// precision.
std::vector<double> ticks_between(double low, double high, double step) {
  constexpr int kMostTicks = 8;
  const double first = std::ceil(low / step) * step;
  std::vector<double> out;
  for (int i = 0; i < kMostTicks && first + i * step <= high; ++i) out.push_back(first + i * step);
  return out;
}

// Writes as many digits as distinguish the value from a label at distance `step`.
std::string value_label(double value, double step) {
  constexpr int kUsual = 4, kAll = 17;
  if (value == 0) return "0";
  const double digits = std::floor(std::log10(std::abs(value))) - std::floor(std::log10(step)) + 1;
  return format("{:.{}g}", value, std::clamp(static_cast<int>(digits), kUsual, kAll));
}

// Draws grid lines with labels.
std::string axes(const CurveFrame& frame) {
  std::string out;
  const double up = nice_step((frame.high - frame.low) / 5);
  for (const double v : ticks_between(frame.low, frame.high, up)) {
    const double value = std::abs(v) < up * 1e-9 ? 0 : v;
    out += format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", CurveFrame::kLeft,
                  frame.y(value), CurveFrame::kWidth - CurveFrame::kRight);
    out += format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                  CurveFrame::kLeft - 6, frame.y(value) + 3.5, value_label(value, up));
  }
  const double step = std::max(1.0, nice_step((frame.to - frame.from) / 6));
  for (const double s : ticks_between(frame.from, frame.to, step)) {
    const std::string label = format("{:.0f}", s);
    constexpr double kHalfDigit = 3.5;
    const double last = CurveFrame::kWidth - kHalfDigit * static_cast<double>(label.size());
    out += format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                  std::min(frame.x(s), last), CurveFrame::kHeight - 6, label);
  }
  return out;
}

std::string drawing(const CurveFrame& frame, const std::vector<CurveSpan>& spans,
                    const std::string& color) {
  std::string line, over, under;
  bool merged = false;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const CurveSpan& span = spans[i];
    merged = merged || span.count > 1;
    line += (i == 0 ? "M" : "L") + at(frame, span.middle(), span.mean());
    over += (i == 0 ? "M" : "L") + at(frame, span.middle(), span.high);
    under.insert(0, "L" + at(frame, span.middle(), span.low));
  }
  std::string out;
  if (merged) out += format("<path d=\"{}{}Z\" fill=\"{}\" opacity=\".2\"/>", over, under, color);
  out += format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>", line, color);
  constexpr std::size_t kFewPoints = 40;
  if (spans.size() > kFewPoints) return out;
  for (const CurveSpan& span : spans) {
    out += format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\" fill=\"{}\"><title>{}: {:.4g}"
        "</title></circle>",
        frame.x(span.middle()), frame.y(span.mean()), color, span.first, span.mean());
  }
  return out;
}

}  // namespace

void Curve::add(std::uint64_t step, double value) {
  constexpr double kMost = 1e300;  // keeps sums and differences finite
  if (!(std::abs(value) <= kMost)) return;
  if (spans_.empty()) first_ = value;
  last_ = value;
  const std::uint64_t each = spans_.empty() ? 1 : spans_.front().count;
  if (spans_.empty() || spans_.back().count >= each) {
    spans_.push_back({step, step, 1, value, value, value});
  } else {
    CurveSpan& span = spans_.back();
    span.last = step;
    ++span.count;
    span.sum += value;
    span.low = std::min(span.low, value);
    span.high = std::max(span.high, value);
  }
  if (spans_.size() < 2 * kMostSpans || spans_.back().count < each) return;
  for (std::size_t i = 0; i < kMostSpans; ++i) {
    const CurveSpan &a = spans_[2 * i], &b = spans_[2 * i + 1];
    spans_[i] = {a.first,
                 b.last,
                 a.count + b.count,
                 a.sum + b.sum,
                 std::min(a.low, b.low),
                 std::max(a.high, b.high)};
  }
  spans_.resize(kMostSpans);
}

void TrainingCurves::add(const Json& row) {
  if (!row.is_object()) return;
  const auto step = row.find("step");
  if (step == row.end() || !step->is_number_unsigned()) return;
  for (const auto& [name, value] : row.items()) {
    if (!value.is_number()) continue;
    const auto [known, is_new] = panel_of_.try_emplace(name, 0);
    if (is_new) known->second = find_panel(name);
    if (known->second >= 0) curves_[name].add(step->get<std::uint64_t>(), value.get<double>());
  }
}

std::vector<CurvePanel> TrainingCurves::panels() const {
  std::vector<CurvePanel> out;
  const auto& kinds = panel_kinds();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CurvePanel panel{std::string(kinds[i].title), {}};
    for (const std::string_view pattern : kinds[i].metrics) {
      for (const auto& [name, curve] : curves_) {
        if (panel.curves.size() == kMostCurves || curve.spans().empty()) continue;
        if (panel_of_.at(name) == static_cast<int>(i) && matches(pattern, name))
          panel.curves.push_back({name, curve});
      }
    }
    if (!panel.curves.empty()) out.push_back(std::move(panel));
  }
  return out;
}

std::string curve_color(std::size_t index) {
  return to_hex(spread_hue(index % kMostCurves));
}

std::string panel_svg(const CurvePanel& panel) {
  const CurveFrame frame = frame_of(panel);
  std::string label = panel.title;
  for (const auto& [name, curve] : panel.curves)
    label += format("; {} from {:.4g} to {:.4g}", name, curve.first(), curve.last());
  std::string out =
      format("<svg class=\"curve\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
             CurveFrame::kWidth, CurveFrame::kHeight, escape_markup(label));
  out += axes(frame);
  for (std::size_t i = 0; i < panel.curves.size(); ++i)
    out += drawing(frame, panel.curves[i].curve.spans(), curve_color(i));
  return out + "</svg>";
}

}  // namespace neap::report
