// Operations of optimizers on libtorch: norms, fused steps, stochastic rounding.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "base/random.h"
#include "base/status.h"
#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "ops/rounding.h"

namespace neap::ops {

using at::Tensor;

Tensor AtenOps::norm_of(const Tensor& a) const {
  return at::linalg_vector_norm(a, 2, c10::nullopt, false,
                                to_aten(step::wide(to_step(a.scalar_type()))));
}

void AtenOps::fused_adamw_(const Tensor& x, const Tensor& g, const Tensor& average,
                           const Tensor& square, const Tensor& count, double lr,
                           const spec::OptimizerConfig& config) const {
  at::_fused_adamw_({x}, {g}, {average}, {square}, {}, {count}, lr, config.beta1, config.beta2,
                    config.weight_decay, config.eps, /*amsgrad=*/false, /*maximize=*/false);
}

void AtenOps::fused_sgd_(const Tensor& x, const Tensor& g, const Tensor& momentum, double lr,
                         const spec::OptimizerConfig& config) const {
  std::vector<Tensor> buffers;
  if (momentum.defined()) buffers.push_back(momentum);
  // A momentum buffer of zeros becomes the gradient, as in the first step of torch.optim.SGD.
  at::_fused_sgd_({x}, {g}, buffers, config.weight_decay, momentum.defined() ? config.momentum : 0,
                  lr, /*dampening=*/0, config.nesterov, /*maximize=*/false,
                  /*is_first_step=*/false);
}

Tensor AtenOps::rounding_noise(std::uint64_t key, std::int64_t n) const {
  if (device_.is_cuda()) return rounding_noise_by_operations(device_, key, n);
  Tensor out = at::empty({n}, at::dtype(at::kInt).device(device_));
  auto* const to = out.mutable_data_ptr<std::int32_t>();
  at::parallel_for(0, n, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = noise_number(key, i);
  });
  return out;
}

void AtenOps::round_stochastically_(const Tensor& to, const Tensor& value, const Tensor& noise,
                                    std::uint64_t key, std::int64_t first) const {
  if (to.scalar_type() != at::kBFloat16 || value.scalar_type() != at::kFloat ||
      !to.is_contiguous() || !value.is_contiguous()) {
    throw Error(ErrorCode::kInternal,
                "stochastic rounding is from float32 to bfloat16, contiguous");
  }
  const Tensor flat_to = to.view({-1});
  const Tensor flat_value = value.view({-1});
  const std::int64_t end = first + flat_to.numel();
  for (std::int64_t at = first; at < end;) {
    // Each tile modifies the noise with its own number, so that all tiles differ.
    const std::int64_t tile = at / step::kNoise;
    const std::int64_t next = std::min(end, (tile + 1) * step::kNoise);
    const auto change =
        static_cast<std::int32_t>(random_key({key, static_cast<std::uint64_t>(tile)}) >> 48);
    const std::int64_t n = next - at;
    const Tensor part = flat_to.narrow(0, at - first, n);
    const Tensor from = flat_value.narrow(0, at - first, n);
    const Tensor numbers = noise.narrow(0, at - tile * step::kNoise, n);
    if (to.is_cuda()) {
      round_by_operations(part, from, numbers, change);
    } else {
      round_on_host(part, from, numbers, change);
    }
    at = next;
  }
}

// ---- ops/rounding.h ----

namespace {

// An int32 with the bits of a uint32.
at::Scalar wrapped(std::uint32_t x) {
  return static_cast<std::int64_t>(static_cast<std::int32_t>(x));
}

}  // namespace

Tensor rounding_noise_by_operations(at::Device device, std::uint64_t key, std::int64_t n) {
  const NoiseKey k(key);
  Tensor x = at::arange(0, n, at::dtype(at::kInt).device(device));
  x.mul_(wrapped(k.multiplier)).add_(wrapped(k.offset));
  // Shifts of int32 copy the sign bit; masks remove it.
  Tensor shifted = at::empty_like(x);
  const auto scramble = [&](int shift, std::uint32_t mask, std::uint32_t multiplier) {
    at::bitwise_right_shift_out(shifted, x, shift);
    shifted.bitwise_and_(wrapped(mask));
    x.bitwise_xor_(shifted).mul_(wrapped(multiplier));
  };
  scramble(16, 0xffffU, kNoiseMix1);
  scramble(15, 0x1ffffU, kNoiseMix2);
  return x.bitwise_right_shift_(16).bitwise_and_(wrapped(0xffffU));
}

void round_by_operations(const Tensor& to, const Tensor& value, const Tensor& noise,
                         std::int32_t change) {
  const Tensor bits = at::bitwise_xor(noise, static_cast<std::int64_t>(change));
  bits.add_(value.view(at::kInt));
  // The upper half of each sum is the bfloat16 value.
  to.view(at::kShort).copy_(bits.view(at::kShort).view({-1, 2}).select(1, 1));
}

void round_on_host(const Tensor& to, const Tensor& value, const Tensor& noise,
                   std::int32_t change) {
  auto* const out = static_cast<std::uint16_t*>(to.mutable_data_ptr());
  const auto* const in = value.const_data_ptr<float>();
  const auto* const numbers = noise.const_data_ptr<std::int32_t>();
  at::parallel_for(0, to.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, in + i, sizeof bits);
      bits += static_cast<std::uint32_t>(numbers[i] ^ change);
      out[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  });
}

}  // namespace neap::ops
