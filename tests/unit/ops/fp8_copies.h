// Expectations of conversions to fp8 that hold on every device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/aten_ops.h"

namespace neap::ops::testing {

/// Copies of x (m, n) that are made one after another have the scale and the bits of those made at once.
inline void expect_one_scale(const AtenOps& ops, const at::Tensor& x, step::Fp8Format format) {
  step::Fp8Copies<at::Tensor> both, later;
  ops.to_fp8(both, x, format, step::Fp8Sides::kBoth);
  ops.to_fp8(later, x, format, step::Fp8Sides::kRows);
  ops.to_fp8(later, x, format, step::Fp8Sides::kColumns);
  EXPECT_TRUE(at::equal(later.scale, both.scale));
  for (const auto side :
       {&step::Fp8Copies<at::Tensor>::rows, &step::Fp8Copies<at::Tensor>::columns})
    EXPECT_TRUE(at::equal((later.*side).view(at::kByte), (both.*side).view(at::kByte)));
}

}  // namespace neap::ops::testing
