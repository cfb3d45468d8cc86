#include "spec/types/dtype.h"

#include <cmath>

#include "spec/types/names.h"

namespace neap::spec {
namespace {

constexpr Named<Dtype> kDtypes[] = {
    {"bool", Dtype::kBool},       {"int64", Dtype::kInt64},     {"bfloat16", Dtype::kBfloat16},
    {"float16", Dtype::kFloat16}, {"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64},
};

// Rounds to `bits` bits of significand, in the current rounding mode (nearest even).
double to_bits(double value, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return name_of(kDtypes, dtype);
}

Result<Dtype> parse_dtype(std::string_view name) {
  return parse_name(kDtypes, name, "A data type");
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
