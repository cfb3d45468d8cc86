// Element types, for code that does not use a tensor library.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace neap::spec {

enum class Dtype : std::uint8_t { kBool, kInt64, kBfloat16, kFloat16, kFloat32, kFloat64 };
/// torch's name: "bfloat16".
[[nodiscard]] std::string_view to_string(Dtype dtype);
[[nodiscard]] Result<Dtype> parse_dtype(std::string_view name);

[[nodiscard]] constexpr std::int64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return 1;
    case Dtype::kBfloat16:
    case Dtype::kFloat16:
      return 2;
    case Dtype::kFloat32:
      return 4;
    case Dtype::kInt64:
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr Bytes tensor_bytes(std::int64_t elements, Dtype dtype) {
  return Bytes(static_cast<std::uint64_t>(elements * element_bytes(dtype)));
}

/// `value` rounded to that type, to nearest even. `value` must be in the type's normal range.
[[nodiscard]] double rounded(double value, Dtype dtype);

}  // namespace neap::spec
