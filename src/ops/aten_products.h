// Products of large matrices on a GPU (kernels/tuned_products.h). Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include "step/operations/own_kernels.h"

namespace neap::ops {

struct ProductSum {
  double alpha = 1;
  bool adds = false;  ///< to the values of the result
  at::Tensor bias{};  ///< (n,), or undefined
};

/// out (m, n) = alpha a (m, k) b (k, n) + out + bias. a and b are bfloat16, `out` is bfloat16 or
/// float32. False: libtorch is to multiply, because the matrices are small or of other types, or
/// because of the GPU.
[[nodiscard]] bool multiply_tuned(const step::OwnKernels& own, const at::Tensor& out,
                                  const at::Tensor& a, const at::Tensor& b,
                                  const ProductSum& sum = {});

}  // namespace neap::ops
