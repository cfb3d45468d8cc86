#include "spec/dtype.h"

#include <array>
#include <cmath>

#include "spec/names.h"

namespace neap::spec {
namespace {

// Indexed by the enum.
constexpr std::array<std::string_view, 6> kDtypeNames = {"bool",    "int64",   "bfloat16",
                                                         "float16", "float32", "float64"};

// Rounds to `bits` bits of significand, in the current rounding mode (nearest even).
double to_bits(double value, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return kDtypeNames[static_cast<std::size_t>(dtype)];
}

Result<Dtype> parse_dtype(std::string_view name) {
  return parse_name<Dtype>(kDtypeNames, name, "A data type");
}

double rounded(double value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBfloat16:
      return to_bits(value, 8);
    case Dtype::kFloat16:
      return to_bits(value, 11);
    case Dtype::kFloat32:
      return to_bits(value, 24);
    case Dtype::kBool:
      return value != 0 ? 1 : 0;
    case Dtype::kInt64:
      return std::trunc(value);
    case Dtype::kFloat64:
      break;
  }
  return value;
}

}  // namespace neap::spec
