#pragma once

#include <ATen/core/Tensor.h>

// Matrix products of tensors on any device.
//
// libtorch multiplies bfloat16 and float16 on an x86 processor without AVX-512 one scalar at a time: 100 times slower than
// float32. There, blocks of the operands are converted to float32, multiplied, and rounded once. This takes at most 9 MiB of
// host memory at a time, outside the device's memory. Every other product is libtorch's own.
//
// Threads: any; results do not depend on the thread. Failure: libtorch's exceptions.
namespace neap::bridge {

// out = a b. a: [m, k], b: [k, n], out: [m, n], all of one type.
at::Tensor& product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// out = bias + a b. bias: [n] or [m, n].
at::Tensor& product_plus_out(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                             const at::Tensor& b);

// c += alpha a b. c: [m, n] of the operands' type or float32.
void add_product_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double alpha);

// out[i] = a[i] b[i]. a: [batch, m, k], b: [batch, k, n], out: [batch, m, n].
at::Tensor& batch_product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// out = start + alpha a b, by blocks in float32. start: [m, n], undefined (zeros) or `out`. What the others use on such a
// processor; right on all.
void product_through_float32(const at::Tensor& out, const at::Tensor& start, const at::Tensor& a,
                             const at::Tensor& b, double alpha = 1);

}  // namespace neap::bridge
