// The operations of a block, with gradients added straight into flat buffers.
//
// Each runs with or without autograd (by the thread's grad mode). Parameters are plain views: in
// backward an operation adds its weight gradient to `d_weight` in place, so no gradient of a
// parameter's size is ever a temporary. The structs outlive every graph that used them, and may be
// put on other storage between forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace neap::model {

/// y = x W^T + b, plus an adapter's scale (x A^T) B^T. GPT-2 stores W as (in, out).
struct Linear {
  at::Tensor weight;    // (out, in), or (in, out) when input_major
  at::Tensor bias;      // (out,) or undefined
  at::Tensor d_weight;  // as weight; undefined: frozen
  at::Tensor d_bias;
  bool input_major = false;
  at::Tensor lora_a, lora_b;      // (r, in), (out, r); undefined: none
  at::Tensor d_lora_a, d_lora_b;  // undefined: frozen
  double lora_scale = 0;
  bool lora_merged = false;

  [[nodiscard]] bool has_lora() const { return lora_a.defined() && !lora_merged; }
};

struct Norm {
  at::Tensor weight, bias;      // (C,); bias undefined: RMSNorm
  at::Tensor d_weight, d_bias;  // undefined: frozen
  double eps = 1e-5;
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
[[nodiscard]] Activation activation_from_name(const std::string& name);

namespace ops {

/// What norms, softmax and log-probs are computed in: float32, or float64 for float64 (tests).
[[nodiscard]] inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// (N, in) -> (N, out). Keeps x.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, Linear& p);
/// linear(act(gate) * up); `up` undefined: linear(act(gate)). Keeps gate and up, not the product.
/// Without autograd `gate` is overwritten.
[[nodiscard]] at::Tensor activated_linear(const at::Tensor& gate, const at::Tensor& up,
                                          Activation act, Linear& p);
/// (N, C) -> (N, C). Keeps x and a number or two a row.
[[nodiscard]] at::Tensor norm(const at::Tensor& x, Norm& p);

/// cos and sin of `positions` (P,) times the frequencies: (P, D/2) of `dtype`.
struct RopeTable {
  at::Tensor cos, sin;
};
[[nodiscard]] RopeTable rope_table(const at::Tensor& positions, std::int64_t head_dim, double theta,
                                   at::ScalarType dtype);
/// Rotates x (..., H, D) in Hugging Face's half-split form; the table broadcasts as (..., 1, D/2).
[[nodiscard]] at::Tensor rope(const at::Tensor& x, const RopeTable& table);

/// Causal self-attention within each sequence: q (N, H, D), k and v (N, H_kv, D) -> (N, H * D).
[[nodiscard]] at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const std::vector<std::int64_t>& lengths);
/// One query a sequence against cached keys: q (B, H, D), keys and values (B, H_kv, T, D),
/// mask (B, 1, 1, T) bool, true where it may look -> (B, H * D).
[[nodiscard]] at::Tensor decode_attention(const at::Tensor& q, const at::Tensor& keys,
                                          const at::Tensor& values, const at::Tensor& mask);

/// target (M, C): row rows[i] += values[i], for values (N, C) of the target's dtype. Rows may repeat.
/// The sums have the same order in every run, for any number of threads.
void add_rows(at::Tensor& target, const at::Tensor& rows, const at::Tensor& values);

/// d += a^T b in place, without a temporary when the dtypes agree: a (N, m), b (N, n), d (m, n).
void add_outer(at::Tensor& d, const at::Tensor& a, const at::Tensor& b);

}  // namespace ops
}  // namespace neap::model
