// Conversion between element types of libtorch and of plans.
#pragma once

#include <c10/core/ScalarType.h>

#include "spec/types/dtype.h"

namespace neap::bridge {

/// Throws kUnsupported for a type that plans do not have.
[[nodiscard]] spec::Dtype to_step(at::ScalarType type);
[[nodiscard]] at::ScalarType to_aten(spec::Dtype dtype);

}  // namespace neap::bridge
