#include "spec/dtype.h"

#include <cmath>

namespace neap::spec {
namespace {

// To `bits` bits of significand, in the current rounding mode (to nearest even).
double to_bits(double value, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

}  // namespace

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
