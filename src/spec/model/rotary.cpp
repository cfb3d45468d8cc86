// Frequencies of the rotary embedding and slopes of ALiBi. They are computed in float32 in Hugging
// Face's order of operations, because their rounding affects the model's results.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "spec/model/architecture.h"

namespace neap::spec {
namespace {

// theta^(2i / dimensions), the reciprocal of a frequency.
std::vector<float> powers(double theta, std::int64_t dimensions) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < dimensions; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dimensions);
    // Computed in double, so that it is rounded once.
    out.push_back(static_cast<float>(
        std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent))));
  }
  return out;
}

double dynamic_theta(const Rotary& r, std::int64_t length) {
  const auto dimensions = static_cast<double>(r.dimensions);
  const auto limit = static_cast<double>(r.original_max_positions);
  const double stretch =
      r.factor * std::max(static_cast<double>(length), limit) / limit - (r.factor - 1);
  return r.dimensions > 2 ? r.theta * std::pow(stretch, dimensions / (dimensions - 2)) : r.theta;
}

// Yarn: the dimension that rotates this many times over the original positions.
double dimension_of(const Rotary& r, double rotations) {
  return static_cast<double>(r.dimensions) *
         std::log(static_cast<double>(r.original_max_positions) /
                  (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(r.theta));
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

double yarn_attention_factor(const Rotary& r) {
  if (r.attention_factor > 0) return r.attention_factor;
  if (r.mscale > 0 && r.mscale_all_dim > 0)
    return yarn_magnitude(r.factor, r.mscale) / yarn_magnitude(r.factor, r.mscale_all_dim);
  return yarn_magnitude(r.factor, 1);
}

double longrope_attention_factor(const Rotary& r) {
  if (r.attention_factor > 0) return r.attention_factor;
  if (r.factor <= 1) return 1;
  return std::sqrt(1 +
                   std::log(r.factor) / std::log(static_cast<double>(r.original_max_positions)));
}

// Each dimension has its own divisor. Sequences beyond the original positions use other divisors.
void apply_longrope(const Rotary& r, std::int64_t length, std::vector<float>& frequencies) {
  const std::vector<float> power = powers(r.theta, r.dimensions);
  const std::vector<float>& factors =
      length > r.original_max_positions ? r.long_factors : r.short_factors;
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = 1 / (factors[i] * power[i]);
}

// Slow dimensions are interpolated, fast ones are kept, and a ramp connects them.
void apply_yarn(const Rotary& r, std::vector<float>& frequencies) {
  double low = dimension_of(r, r.beta_fast);
  double high = dimension_of(r, r.beta_slow);
  if (r.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(r.dimensions - 1));
  if (std::abs(high - low) < 1e-6) high = low + 0.001;
  const std::vector<float> power = powers(r.theta, r.dimensions);
  const auto factor = static_cast<float>(r.factor);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float keep = 1 - ramp;
    frequencies[i] = 1 / (factor * power[i]) * (1 - keep) + 1 / power[i] * keep;
  }
}

// Wavelengths over original / low are multiplied by the factor; those under original / high are
// kept.
void apply_llama3(const Rotary& r, std::vector<float>& frequencies) {
  const auto original = static_cast<float>(r.original_max_positions);
  const auto low = static_cast<float>(r.low_frequency_factor);
  const auto high = static_cast<float>(r.high_frequency_factor);
  const auto factor = static_cast<float>(r.factor);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength < original / high) continue;
    const float slow = frequency / factor;
    if (wavelength > original / low) {
      frequency = slow;
    } else {
      const float smooth = (original / wavelength - low) / (high - low);
      frequency = (1 - smooth) * slow + smooth * frequency;
    }
  }
}

}  // namespace

// If `heads` is not a power of two, the other heads take every second slope of twice as many heads.
std::vector<float> alibi_slopes(std::int64_t heads) {
  const auto powers_of_two =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> slopes;
  const auto add = [&](std::int64_t of, std::int64_t i) {
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(of))));
  };
  for (std::int64_t i = 1; i <= powers_of_two; ++i) add(powers_of_two, i);
  for (std::int64_t i = 1; std::ssize(slopes) < heads; i += 2) add(2 * powers_of_two, i);
  return slopes;
}
std::vector<float> alibi_slopes(std::int64_t all, std::int64_t first, std::int64_t heads) {
  const std::vector<float> slopes = alibi_slopes(all);
  const auto begin = slopes.begin() + first;
  return {begin, begin + heads};
}

std::int64_t least_alike(const Rotary& rotary, std::int64_t length) {
  if (length <= rotary.original_max_positions) return 0;
  if (rotary.scaling == Rotary::Scaling::kDynamic) return length;
  return rotary.scaling == Rotary::Scaling::kLongrope ? rotary.original_max_positions + 1 : 0;
}

RotaryTable rotary_table(const Rotary& rotary, std::int64_t length) {
  using Scaling = Rotary::Scaling;
  const bool dynamic = rotary.scaling == Scaling::kDynamic;
  RotaryTable table{
      powers(dynamic ? dynamic_theta(rotary, length) : rotary.theta, rotary.dimensions)};
  for (float& f : table.frequencies) f = 1 / f;
  switch (rotary.scaling) {
    case Scaling::kNone:
    case Scaling::kDynamic:
      break;
    case Scaling::kLinear:
      for (float& f : table.frequencies) f /= static_cast<float>(rotary.factor);
      break;
    case Scaling::kYarn:
      apply_yarn(rotary, table.frequencies);
      table.attention_factor = yarn_attention_factor(rotary);
      break;
    case Scaling::kLlama3:
      apply_llama3(rotary, table.frequencies);
      break;
    case Scaling::kLongrope:
      apply_longrope(rotary, length, table.frequencies);
      table.attention_factor = longrope_attention_factor(rotary);
      break;
  }
  return table;
}

}  // namespace neap::spec
