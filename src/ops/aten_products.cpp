// Products of large matrices on a GPU, by the fastest algorithm of cuBLASLt.
#include "ops/aten_products.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "bridge/streams.h"
#include "bridge/torch_dtypes.h"
#include "kernels/tuned_products.h"
#include "ops/own_launch.h"

namespace neap::ops {
namespace {

std::optional<kernels::Factor> factor_of(const at::Tensor& t) {
  if (t.stride(1) == 1 && t.stride(0) >= t.size(1)) return kernels::Factor{t.stride(0), false};
  if (t.stride(0) == 1 && t.stride(1) >= t.size(0)) return kernels::Factor{t.stride(1), true};
  return std::nullopt;
}

}  // namespace

bool multiply_tuned(const step::OwnKernels& own, const at::Tensor& out, const at::Tensor& a,
                    const at::Tensor& b, const ProductSum& sum) {
  constexpr std::uint64_t kLeast = 16, kMost = 256;  // bytes
  if (!out.is_cuda() || b.scalar_type() != a.scalar_type() ||
      !own.tunes(bridge::to_step(a.scalar_type()), a.size(0), a.size(1), b.size(1)))
    return false;
  const bool float32 = out.scalar_type() == at::kFloat;
  const std::optional<kernels::Factor> first = factor_of(a), second = factor_of(b);
  const std::uint64_t addresses = own::address_of(a) | own::address_of(b) | own::address_of(out);
  const std::uint64_t alignment = std::min(kMost, addresses & (~addresses + 1));
  const at::Tensor& bias = sum.bias;
  if (bias.defined() && (bias.dim() != 1 || bias.scalar_type() != a.scalar_type() ||
                         !bias.is_contiguous() || own::address_of(bias) % kLeast != 0))
    return false;
  if ((!float32 && out.scalar_type() != a.scalar_type()) || !first || !second ||
      out.stride(1) != 1 || alignment < kLeast)
    return false;
  const Result<kernels::TunedProducts*> products =
      kernels::TunedProducts::of(static_cast<int>(out.device().index()));
  if (!products.ok()) return false;
  const kernels::ProductShape shape{.rows = a.size(0),
                                    .columns = b.size(1),
                                    .depth = a.size(1),
                                    .a = *first,
                                    .b = *second,
                                    .out_stride = out.stride(0),
                                    .float32 = float32,
                                    .adds = sum.adds,
                                    .bias = bias.defined(),
                                    .alignment = static_cast<std::uint32_t>(alignment)};
  const kernels::TunedProducts::Operands by{
      .alpha = static_cast<float>(sum.alpha),
      .a = a.const_data_ptr(),
      .b = b.const_data_ptr(),
      .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
      .out = out.mutable_data_ptr()};
  void* const stream = bridge::native_handle(bridge::current_stream(out.device()));
  return value_or_throw((*products)->multiply(shape, by, stream));
}

}  // namespace neap::ops
