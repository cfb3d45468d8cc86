#pragma once

#include <ATen/core/Tensor.h>

// Matrix products of tensors on any device.
//
// On x86 without AVX-512, libtorch multiplies bfloat16 and float16 one scalar at a time, 100 times
// slower than float32. In that case, blocks of the operands are converted to float32, multiplied,
// and rounded once. Other products use libtorch.
//
// Threads   any; results do not depend on the thread.
// Failure   libtorch's exceptions.
// Cost      at most 9 MiB of host memory at a time, outside the arena.
namespace neap::bridge {

// out = a b, with a: [m, k], b: [k, n], out: [m, n], all of one type.
at::Tensor& product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// out = bias + a b, with bias: [n] or [m, n].
at::Tensor& product_plus_out(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                             const at::Tensor& b);

// c += alpha a b, with c: [m, n] of the operands' type or float32.
void add_product_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double alpha);

// out[i] = a[i] b[i], with a: [batch, m, k], b: [batch, k, n], out: [batch, m, n].
at::Tensor& batch_product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// Values of fp8, and what a value of 1 stands for.
struct Fp8Matrix {
  at::Tensor values, scale;
};
// out = bias + a b^T, with a: [m, k], b: [n, k], bias: [n] or undefined. On a GPU, fast sums are less exact
// than float32's.
at::Tensor& fp8_product_out(at::Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b,
                            const at::Tensor& bias, bool fast);

// out = start + alpha a b, in blocks of float32. `start` is [m, n], undefined (zeros), or `out`.
// The functions above use it on such processors; it works on all.
void product_through_float32(const at::Tensor& out, const at::Tensor& start, const at::Tensor& a,
                             const at::Tensor& b, double alpha = 1);

}  // namespace neap::bridge
