// Keys of the rotary embedding: rope_parameters, rope_scaling and the older top-level ones.
#include "spec/model/config_groups.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace neap::spec::architectures {
namespace {

// The object with rotary settings. A non-empty rope_scaling replaces rope_parameters.
const char* rotary_object(Fields& f) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key) || f.is_null(key)) continue;
    if (!f.value(key).is_object()) {
      f.fail(key, "is not an object");
      return nullptr;
    }
    if (!f.value(key).empty()) return key;
  }
  return nullptr;
}

double bounded(Fields& f, const char* key, double missing) {
  // Values within these bounds give finite frequencies.
  constexpr double kLow = 1e-6;
  constexpr double kHigh = 1e18;
  const double v = f.positive(key, missing);
  if (v < kLow || v > kHigh) f.fail(key, format("is {}; it can be {} to {}", v, kLow, kHigh));
  return std::clamp(v, kLow, kHigh);
}

// Reads `factor`, which this kind of scaling requires.
double required(Fields& f, const char* key) {
  if (!f.has(key)) f.fail(key, "is missing");
  return bounded(f, key, 1);
}

// The top-level key takes precedence, including its default if the class has one.
std::int64_t original_positions(Fields& top, Fields& f, const Architecture& a,
                                const RotaryKeys& keys) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const Range range{.high = kMaxPositions};
  if (top.has(kKey) || keys.original_positions > 0)
    return top.integer(kKey, keys.original_positions, range);
  return f.integer(kKey, a.max_position_embeddings, range);
}

double ratio_of_positions(const Rotary& r, const Architecture& a) {
  return static_cast<double>(a.max_position_embeddings) /
         static_cast<double>(r.original_max_positions);
}

void read_yarn(Fields& f, Rotary& r, const Architecture& a) {
  if (!f.has("factor")) f.fail("factor", "is missing");
  r.factor = f.is_null("factor") ? ratio_of_positions(r, a) : bounded(f, "factor", 1);
  r.attention_factor = f.positive_or_null("attention_factor", std::nullopt).value_or(0);
  // Zero and null mean the default, as in Hugging Face.
  const auto given = [&f](const char* key, double fallback) {
    const double v = f.is_null(key) ? 0 : f.number(key, 0);
    if (v < 0) f.fail(key, format("is {}; it cannot be negative", v));
    return v > 0 ? v : fallback;
  };
  r.beta_fast = given("beta_fast", 32);
  r.beta_slow = given("beta_slow", 1);
  r.mscale = given("mscale", 0);
  r.mscale_all_dim = given("mscale_all_dim", 0);
  r.truncate = f.boolean("truncate", true);
  if (r.theta <= 1) f.fail("rope_theta", format("is {}; yarn needs more than 1", r.theta));
}

// Divisors of the frequencies, one per rotated pair of dimensions.
std::vector<float> read_divisors(Fields& f, const char* key, const Rotary& r) {
  std::vector<float> out;
  if (f.has(key) && f.value(key).is_array()) {
    for (const Json& v : f.value(key)) {
      const double d = v.is_number() ? v.get<double>() : 0;
      if (d < 1e-3 || d > 1e6) break;
      out.push_back(static_cast<float>(d));
    }
  }
  const std::int64_t wanted = r.dimensions / 2;
  if (std::ssize(out) != wanted || f.value(key).size() != out.size()) {
    f.fail(key, format("is not a list of {} numbers from 0.001 to 1000000", wanted));
    out.assign(static_cast<std::size_t>(std::max<std::int64_t>(wanted, 0)), 1.0F);
  }
  return out;
}

void read_longrope(Fields& f, Rotary& r, const Architecture& a) {
  const bool given = f.has("factor") && !f.is_null("factor");
  r.factor = given ? bounded(f, "factor", 1) : ratio_of_positions(r, a);
  r.attention_factor = f.positive_or_null("attention_factor", std::nullopt).value_or(0);
  if (r.factor > 1 && r.original_max_positions < 2)
    f.fail("original_max_position_embeddings", "is 1; longrope needs more");
  r.short_factors = read_divisors(f, "short_factor", r);
  r.long_factors = read_divisors(f, "long_factor", r);
}

void read_scaling(Fields& top, Fields& f, Architecture& a, const std::string& type,
                  const RotaryKeys& keys) {
  Rotary& r = a.rotary;
  if (type == "default") return;
  if (type == "linear") {
    r.scaling = Rotary::Scaling::kLinear;
    r.factor = required(f, "factor");
  } else if (type == "dynamic") {
    r.scaling = Rotary::Scaling::kDynamic;
    r.factor = required(f, "factor");
    r.original_max_positions = a.max_position_embeddings;
  } else if (type == "yarn") {
    r.scaling = Rotary::Scaling::kYarn;
    r.original_max_positions = original_positions(top, f, a, keys);
    read_yarn(f, r, a);
  } else if (type == "llama3") {
    r.scaling = Rotary::Scaling::kLlama3;
    r.factor = required(f, "factor");
    r.low_frequency_factor = required(f, "low_freq_factor");
    r.high_frequency_factor = required(f, "high_freq_factor");
    r.original_max_positions = original_positions(top, f, a, keys);
    if (r.high_frequency_factor <= r.low_frequency_factor)
      f.fail("high_freq_factor", format("is {}; it must be over low_freq_factor {}",
                                        r.high_frequency_factor, r.low_frequency_factor));
  } else if (type == "longrope") {
    r.scaling = Rotary::Scaling::kLongrope;
    r.original_max_positions = original_positions(top, f, a, keys);
  } else {
    f.refuse("rope_type", format("is \"{}\"; supported are default, linear, dynamic, yarn, llama3 "
                                 "and longrope",
                                 type));
  }
}

// Reads which dimensions of a head are rotated.
void read_rotary_dimensions(Fields& f, Architecture& a, const RotaryKeys& keys, double partial) {
  if (partial <= 0 || partial > 1)
    return f.fail(keys.partial, format("is {}; it can be over 0 and up to 1", partial));
  Rotary& r = a.rotary;
  const bool whole = r.scaling == Rotary::Scaling::kNone && !keys.slices;
  r.dimensions =
      whole ? a.head_dim : static_cast<std::int64_t>(static_cast<double>(a.head_dim) * partial);
  if (r.dimensions != a.head_dim && !keys.slices)
    f.refuse(keys.partial, format("is {}: this model_type turns whole heads", partial));
  if (r.dimensions < 2 || r.dimensions % 2 != 0)
    f.fail("head_dim", format("is {}: {} rotary dimensions; they must be even and not 0",
                              a.head_dim, r.dimensions));
}

// Reads the settings of one kind of layer, from its object and the older top-level keys.
void read_one_rotary(Fields& f, Fields& inner, Architecture& a, const RotaryKeys& keys) {
  a.rotary.theta = inner.has("rope_theta") ? bounded(inner, "rope_theta", 1)
                                           : bounded(f, keys.theta, keys.default_theta);
  const std::string type = inner.text("rope_type", inner.text("type", "default"));
  const bool phi = keys.longrope_aliases && (type == "su" || type == "yarn");
  read_scaling(f, inner, a, phi ? "longrope" : type, keys);
  const double partial = inner.has("partial_rotary_factor")
                             ? inner.number("partial_rotary_factor", 1)
                             : f.number(keys.partial, keys.default_partial);
  read_rotary_dimensions(f, a, keys, partial);
  if (a.rotary.scaling == Rotary::Scaling::kLongrope) read_longrope(inner, a.rotary, a);
}

bool differs_by_layer(const Fields& inner) {
  return inner.has("full_attention") || inner.has("sliding_attention");
}

const Json kNoSettings = Json::object();

}  // namespace

void read_rotary(Fields& f, Architecture& a, const RotaryKeys& keys) {
  const char* key = rotary_object(f);
  Fields inner = key != nullptr ? f.object(key) : Fields(kNoSettings, "");
  if (differs_by_layer(inner)) f.refuse(key, "differs between layers, which is not supported");
  read_one_rotary(f, inner, a, keys);
  f.absorb(inner);
}

void read_rotary_by_layer(Fields& f, Architecture& a, const RotaryKeys& full,
                          const RotaryKeys& sliding) {
  const char* key = rotary_object(f);
  Fields outer = key != nullptr ? f.object(key) : Fields(kNoSettings, "");
  const bool flat = !differs_by_layer(outer);  // a flat object says nothing about sliding layers
  const auto read = [&](const char* kind, const RotaryKeys& keys) {
    Rotary before = std::exchange(a.rotary, {});
    if (flat && std::string_view(kind) == "full_attention") {
      read_one_rotary(f, outer, a, keys);
    } else {
      const bool given = !flat && outer.has(kind) && !outer.is_null(kind);
      Fields inner = given ? outer.object(kind) : Fields(kNoSettings, "");
      read_one_rotary(f, inner, a, keys);
      outer.absorb(inner);
    }
    return std::exchange(a.rotary, std::move(before));
  };
  a.sliding_rotary = read("sliding_attention", sliding);
  a.rotary = read("full_attention", full);
  f.absorb(outer);
}

}  // namespace neap::spec::architectures
