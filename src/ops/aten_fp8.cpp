// Products in fp8. On a GPU Neap's kernels convert (src/kernels/cuda/fp8.cu) and cuBLAS multiplies, without
// a wait of the host. On the CPU the same numbers are converted back and multiplied in float32.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/format.h"
#include "bridge/host_products.h"
#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using step::Fp8Format;
using step::Fp8Sides;

namespace {

using Copies = step::Fp8Copies<Tensor>;

at::ScalarType type_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

// Calls use(a value of x's type).
template <class Use>
void with_type(const Tensor& x, const Use& use) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return use(at::BFloat16());
    case at::kFloat:
      return use(float());
    case at::kDouble:
      return use(double());
    default:
      throw Error(ErrorCode::kUnsupported,
                  format("fp8: {} is not converted", c10::toString(x.scalar_type())));
  }
}

// Equals multiplier_of() of fp8.cu; fp8_kernels_test compares them.
float multiplier_of(float largest, Fp8Format format) {
  constexpr float kMostMantissa = 0.875F;  // of the formats' largest numbers, as std::frexp has it
  constexpr int kMost = 126;
  if (largest == 0) return 1;
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  int exponent = 0;
  const float mantissa = std::frexp(largest, &exponent);
  const int top = format == Fp8Format::kE4m3 ? 9 : 16;
  return std::ldexp(1.0F, std::min(top - exponent - (mantissa > kMostMantissa ? 1 : 0), kMost));
}

// The largest absolute value; not finite if one is not.
template <class T>
float largest_of(const Tensor& x) {
  const T* const from = x.const_data_ptr<T>();
  const std::int64_t columns = x.size(1), stride = x.stride(0);
  return at::parallel_reduce(
      0, x.size(0), 16, 0.0F,
      [&](std::int64_t begin, std::int64_t end, float most) {
        for (std::int64_t i = begin; i < end; ++i)
          for (std::int64_t j = 0; j < columns; ++j) {
            const auto value = std::abs(static_cast<float>(from[i * stride + j]));
            if (!(value <= most)) most = std::isnan(most) ? most : value;
          }
        return most;
      },
      [](float a, float b) { return std::isnan(a) || a > b ? a : b; });
}

template <class To, class T>
void convert_on_host(const Copies& copies, bool to_rows, bool to_columns, const Tensor& x,
                     float by) {
  const T* const from = x.const_data_ptr<T>();
  const std::int64_t rows = x.size(0), columns = x.size(1), stride = x.stride(0);
  To* const there = to_rows ? copies.rows.mutable_data_ptr<To>() : nullptr;
  To* const across = to_columns ? copies.columns.mutable_data_ptr<To>() : nullptr;
  const std::int64_t padded = step::fp8_padded(rows);
  at::parallel_for(0, to_columns ? padded : rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        const To value(i < rows ? static_cast<float>(from[i * stride + j]) * by : 0.0F);
        if (there != nullptr && i < rows) there[i * columns + j] = value;
        if (across != nullptr) across[j * padded + i] = value;
      }
  });
}

void convert_on_host(const Copies& copies, bool to_rows, bool to_columns, const Tensor& x,
                     Fp8Format format, bool known) {
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    auto* const scale = copies.scale.mutable_data_ptr<float>();
    const float by = known ? 1 / *scale : multiplier_of(largest_of<T>(x), format);
    *scale = 1 / by;
    if (format == Fp8Format::kE4m3) {
      convert_on_host<at::Float8_e4m3fn, T>(copies, to_rows, to_columns, x, by);
    } else {
      convert_on_host<at::Float8_e5m2, T>(copies, to_rows, to_columns, x, by);
    }
  });
}

// The argument of fp8.cu's kernels.
struct DeviceCopies {
  void *rows, *columns;
  float* scale;
  const void* found;
  int blocks;
};

void check_rows(const Tensor& x) {
  using namespace own;
  check(x, x, "fp8");
  constexpr std::int64_t kOfVector = kernels::fp8::kOfThread;
  if (x.scalar_type() == at::kBFloat16 && address_of(x) % kVectorBytes == 0 &&
      x.size(1) % kOfVector == 0 && x.stride(0) % kOfVector == 0)
    return;
  throw Error(ErrorCode::kInternal,
              "fp8: a kernel takes bfloat16 rows that begin at multiples of 16 bytes");
}

void convert_on_device(const DeviceCopies& to, const Tensor& x, Fp8Format format) {
  using namespace own;
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const std::int64_t stride = rows == 1 ? columns : x.stride(0);
  if (to.found != nullptr) {
    const bool whole = stride == columns;
    launch(x, "fp8", "largest", {to.blocks, 1, kernels::fp8::kThreads}, const_cast<void*>(to.found),
           x.const_data_ptr(), stride, whole ? std::int64_t{1} : rows,
           whole ? rows * columns : columns);
  }
  const auto tiles = [](std::int64_t n) {
    return (n + kernels::fp8::kTile - 1) / kernels::fp8::kTile;
  };
  launch(x, "fp8", format == Fp8Format::kE4m3 ? "convert_e4m3" : "convert_e5m2",
         {tiles(columns), tiles(rows), kernels::fp8::kThreads}, to, x.const_data_ptr(), stride,
         rows, columns, step::fp8_padded(rows));
}

}  // namespace

void AtenOps::to_fp8(Copies& copies, const Tensor& x, Fp8Format format, Fp8Sides sides) const {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const bool known = copies.scale.defined();
  const auto numbers = x.options().dtype(at::kFloat);
  const auto values = x.options().dtype(type_of(format));
  Tensor found;
  if (!known) {
    copies.scale = at::empty({1}, numbers);
    if (cuda()) found = at::empty({step::fp8_blocks(rows * columns)}, numbers);
  }
  const bool to_rows = sides != Fp8Sides::kColumns, to_columns = sides != Fp8Sides::kRows;
  if (to_rows) copies.rows = at::empty({rows, columns}, values);
  if (to_columns) copies.columns = at::empty({columns, step::fp8_padded(rows)}, values);
  if (!cuda()) return convert_on_host(copies, to_rows, to_columns, x, format, known);
  check_rows(x);
  convert_on_device(
      {to_rows ? copies.rows.mutable_data_ptr() : nullptr,
       to_columns ? copies.columns.mutable_data_ptr() : nullptr,
       copies.scale.mutable_data_ptr<float>(), known ? nullptr : found.const_data_ptr(),
       known ? 0 : static_cast<int>(found.numel())},
      x, format);
}

Tensor AtenOps::fp8_product(const step::Fp8Factor<Tensor>& a, const step::Fp8Factor<Tensor>& b,
                            step::Dtype dtype, step::Fp8Sums sums, const Tensor& bias) const {
  Tensor out =
      at::empty({a.values.size(0), b.values.size(0)}, a.scale.options().dtype(to_aten(dtype)));
  const bridge::HostScope scratch;
  return bridge::fp8_product_out(out, {a.values, a.scale}, {b.values, b.scale}, bias,
                                 sums == step::Fp8Sums::kFast);
}

}  // namespace neap::ops
