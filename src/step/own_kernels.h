// Whether Neap's kernels (src/kernels) compute what several operations of libtorch would: the plan and the run ask the
// same choice.
#pragma once

#include "spec/dtype.h"

namespace neap::step {

struct OwnKernels {
  bool on = false;  ///< the card and the job take them

  /// Whether they take tensors of this type.
  [[nodiscard]] constexpr bool take(spec::Dtype dtype) const {
    return on && (dtype == spec::Dtype::kBfloat16 || dtype == spec::Dtype::kFloat32);
  }
};

}  // namespace neap::step
