#include "model/ops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/format.h"
#include "base/status.h"

namespace neap::model {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

Activation activation_from_name(const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  throw Error(ErrorCode::kUnsupported,
              format("hidden_act is \"{}\"; known are silu, gelu, gelu_new and relu", name));
}

namespace {

// A parameter struct goes through autograd's context as its address, not as tensors: it can be put
// on other storage (a gather buffer) between forward and backward, and no reference keeps old
// storage alive.
template <class T>
std::int64_t as_handle(T& p) {
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&p));
}
template <class T>
T& from_handle(const c10::IValue& value) {
  return *reinterpret_cast<T*>(static_cast<std::intptr_t>(value.toInt()));
}

bool recording(const Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

void add_column_sums(Tensor& d, const Tensor& dy) {
  if (d.defined()) d.add_(dy.sum(0, /*keepdim=*/false, d.scalar_type()));
}

Tensor linear_forward(const Tensor& x, const Linear& p) {
  Tensor y;
  if (p.input_major) {
    y = p.bias.defined() ? at::addmm(p.bias, x, p.weight) : at::mm(x, p.weight);
  } else {
    y = p.bias.defined() ? at::addmm(p.bias, x, p.weight.t()) : at::mm(x, p.weight.t());
  }
  if (p.has_lora()) y.addmm_(at::mm(x, p.lora_a.t()), p.lora_b.t(), 1, p.lora_scale);
  return y;
}

// Adds the gradients of p, returns d_x.
Tensor linear_backward(const Tensor& x, const Tensor& dy, Linear& p) {
  if (p.d_weight.defined()) {
    if (p.input_major) {
      ops::add_outer(p.d_weight, x, dy);
    } else {
      ops::add_outer(p.d_weight, dy, x);
    }
  }
  add_column_sums(p.d_bias, dy);
  Tensor dx = at::mm(dy, p.input_major ? p.weight.t() : p.weight);
  if (p.has_lora()) {
    const Tensor dy_b = at::mm(dy, p.lora_b).mul_(p.lora_scale);  // (N, r)
    if (p.d_lora_a.defined()) ops::add_outer(p.d_lora_a, dy_b, x);
    if (p.d_lora_b.defined()) {
      const Tensor x_a = at::mm(x, p.lora_a.t()).mul_(p.lora_scale);
      ops::add_outer(p.d_lora_b, dy, x_a);
    }
    dx.addmm_(dy_b, p.lora_a);
  }
  return dx;
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::int64_t handle) {
    ctx->save_for_backward({x});
    ctx->saved_data["p"] = handle;
    return linear_forward(x, from_handle<Linear>(handle));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list dy) {
    auto& p = from_handle<Linear>(ctx->saved_data["p"]);
    return {linear_backward(ctx->get_saved_variables()[0], dy[0].contiguous(), p), Tensor()};
  }
};

Tensor activate(const Tensor& x, Activation act) {
  switch (act) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}

Tensor activate_(Tensor x, Activation act) {
  switch (act) {
    case Activation::kSilu:
      return at::silu_(x);
    case Activation::kGelu:
      return at::gelu_(x);
    case Activation::kGeluTanh:
      return at::gelu_(x, "tanh");
    case Activation::kRelu:
      return at::relu_(x);
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}

Tensor activate_backward(const Tensor& dy, const Tensor& x, Activation act) {
  switch (act) {
    case Activation::kSilu:
      return at::silu_backward(dy, x);
    case Activation::kGelu:
      return at::gelu_backward(dy, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case Activation::kRelu:
      return at::threshold_backward(dy, x, 0);
  }
  throw Error(ErrorCode::kInternal, "activation out of range");
}

struct ActivatedLinearFunction : torch::autograd::Function<ActivatedLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const std::optional<Tensor>& up,
                        std::int64_t act, std::int64_t handle) {
    ctx->save_for_backward({gate, up.value_or(Tensor())});
    ctx->saved_data["act"] = act;
    ctx->saved_data["p"] = handle;
    Tensor h = activate(gate, static_cast<Activation>(act));
    if (up) h.mul_(*up);
    return linear_forward(h, from_handle<Linear>(handle));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list dy) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& gate = saved[0];
    const Tensor& up = saved[1];
    const auto act = static_cast<Activation>(ctx->saved_data["act"].toInt());
    auto& p = from_handle<Linear>(ctx->saved_data["p"]);
    const Tensor a = activate(gate, act);
    if (!up.defined()) {
      const Tensor dh = linear_backward(a, dy[0].contiguous(), p);
      return {activate_backward(dh, gate, act), Tensor(), Tensor(), Tensor()};
    }
    Tensor h = at::mul(a, up);
    Tensor dh = linear_backward(h, dy[0].contiguous(), p);
    Tensor d_up = at::mul_out(h, dh, a);  // h is dead: its memory becomes d_up
    dh.mul_(up);
    return {activate_backward(dh, gate, act), d_up, Tensor(), Tensor()};
  }
};

// rsqrt(mean(x^2) + eps) a row, in the wide type, without a temporary of x's size.
Tensor rms_reciprocal(const Tensor& x, double eps) {
  const auto width = static_cast<double>(x.size(-1));
  return at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, ops::wide_type(x.scalar_type()))
      .square_()
      .div_(width)
      .add_(eps)
      .rsqrt_();
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor compute(const Tensor& x, const Norm& p, Tensor& rstd) {
    if (x.is_cuda()) {
      auto [y, r] = at::_fused_rms_norm(x, {x.size(-1)}, p.weight, p.eps);
      rstd = r;
      return y;
    }
    rstd = rms_reciprocal(x, p.eps);
    return at::mul(x, rstd).to(x.scalar_type()).mul_(p.weight);
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::int64_t handle) {
    Tensor rstd;
    Tensor y = compute(x, from_handle<Norm>(handle), rstd);
    ctx->save_for_backward({x, rstd});
    ctx->saved_data["p"] = handle;
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& rstd = saved[1];
    auto& p = from_handle<Norm>(ctx->saved_data["p"]);
    if (x.is_cuda()) {
      auto [dx, dw] = at::_fused_rms_norm_backward(grads[0].contiguous(), x, {x.size(-1)}, rstd,
                                                   p.weight, {true, p.d_weight.defined()});
      if (p.d_weight.defined()) p.d_weight.add_(dw);
      return {dx, Tensor()};
    }
    const Tensor dy = grads[0].to(ops::wide_type(x.scalar_type()));
    const Tensor x_hat = at::mul(x, rstd);  // wide
    if (p.d_weight.defined()) p.d_weight.add_(at::mul(dy, x_hat).sum(0));
    Tensor dx = at::mul(dy, p.weight);
    const Tensor inner = at::mul(dx, x_hat).mean(-1, /*keepdim=*/true);
    dx.addcmul_(x_hat, inner, -1).mul_(rstd);
    return {dx.to(x.scalar_type()), Tensor()};
  }
};

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::int64_t handle) {
    const auto& p = from_handle<Norm>(handle);
    auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, p.weight, p.bias, p.eps);
    ctx->save_for_backward({x, mean, rstd});
    ctx->saved_data["p"] = handle;
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    auto& p = from_handle<Norm>(ctx->saved_data["p"]);
    auto [dx, dw, db] = at::native_layer_norm_backward(
        grads[0].contiguous(), saved[0], {saved[0].size(-1)}, saved[1], saved[2], p.weight, p.bias,
        {true, p.d_weight.defined(), p.d_bias.defined()});
    if (p.d_weight.defined()) p.d_weight.add_(dw);
    if (p.d_bias.defined()) p.d_bias.add_(db);
    return {dx, Tensor()};
  }
};

// [x1 cos - x2 sin, x2 cos + x1 sin]; sign -1 is the inverse, which is also the gradient.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) {
  const std::int64_t half = x.size(-1) / 2;
  Tensor y = at::empty(x.sizes(), x.options());
  const Tensor x1 = x.narrow(-1, 0, half);
  const Tensor x2 = x.narrow(-1, half, half);
  Tensor y1 = y.narrow(-1, 0, half);
  Tensor y2 = y.narrow(-1, half, half);
  at::mul_out(y1, x1, cos).addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos).addcmul_(x1, sin, sign);
  return y;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list dy) {
    const auto saved = ctx->get_saved_variables();
    return {rotate(dy[0], saved[0], saved[1], -1), Tensor(), Tensor()};
  }
};

// (B, T, H, D) each -> (B, T, H, D), causal.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor keys = k.transpose(1, 2);  // (B, H_kv, T, D)
  Tensor values = v.transpose(1, 2);
  const bool grouped = q.size(2) != k.size(2);
  if (grouped && !q.is_cuda()) {
    // The CPU kernel wants as many key heads as query heads; without this the call falls back to
    // whole (B, H, T, T) scores.
    const std::int64_t repeats = q.size(2) / k.size(2);
    keys = keys.repeat_interleave(repeats, 1);
    values = values.repeat_interleave(repeats, 1);
  }
  return at::scaled_dot_product_attention(q.transpose(1, 2), keys, values, std::nullopt, 0.0,
                                          /*is_causal=*/true, std::nullopt,
                                          /*enable_gqa=*/grouped && q.is_cuda())
      .transpose(1, 2);
}

bool has_varlen_kernel(const Tensor& q) {
  return q.is_cuda() && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) &&
         q.size(-1) % 8 == 0 && q.size(-1) <= 256;
}

}  // namespace

namespace ops {

Tensor linear(const Tensor& x, Linear& p) {
  return recording(x) ? LinearFunction::apply(x, as_handle(p)) : linear_forward(x, p);
}

Tensor activated_linear(const Tensor& gate, const Tensor& up, Activation act, Linear& p) {
  if (recording(gate)) {
    const auto other = up.defined() ? std::optional<Tensor>(up) : std::nullopt;
    return ActivatedLinearFunction::apply(gate, other, static_cast<std::int64_t>(act),
                                          as_handle(p));
  }
  Tensor h = activate_(gate, act);
  if (up.defined()) h.mul_(up);
  return linear_forward(h, p);
}

Tensor norm(const Tensor& x, Norm& p) {
  const bool rms = !p.bias.defined();
  if (recording(x)) {
    return rms ? RmsNormFunction::apply(x, as_handle(p))
               : LayerNormFunction::apply(x, as_handle(p));
  }
  if (!rms) return std::get<0>(at::native_layer_norm(x, {x.size(-1)}, p.weight, p.bias, p.eps));
  Tensor rstd;
  return RmsNormFunction::compute(x, p, rstd);
}

RopeTable rope_table(const Tensor& positions, std::int64_t head_dim, double theta,
                     at::ScalarType dtype) {
  // float32 as Hugging Face does: the angle's rounding is part of the model.
  const auto options = positions.options().dtype(at::kFloat);
  const Tensor exponent = at::arange(0, head_dim, 2, options).div_(static_cast<double>(head_dim));
  const Tensor frequency = at::pow(at::Scalar(theta), exponent).reciprocal_();  // (D/2,)
  const Tensor angle = positions.to(at::kFloat).unsqueeze(-1) * frequency;      // (P, D/2)
  return {at::cos(angle).to(dtype), at::sin(angle).to(dtype)};
}

Tensor rope(const Tensor& x, const RopeTable& table) {
  return recording(x) ? RopeFunction::apply(x, table.cos, table.sin)
                      : rotate(x, table.cos, table.sin, 1);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const std::vector<std::int64_t>& lengths) {
  const std::int64_t rows = q.size(0);
  const std::int64_t width = q.size(1) * q.size(2);
  const auto batched = [&](const Tensor& t, std::int64_t first, std::int64_t b, std::int64_t n) {
    return t.narrow(0, first, b * n).view({b, n, t.size(1), t.size(2)});
  };
  const bool equal = std::all_of(lengths.begin(), lengths.end(),
                                 [&](std::int64_t n) { return n == lengths.front(); });
  if (equal) {
    const auto b = static_cast<std::int64_t>(lengths.size());
    const std::int64_t t = lengths.front();
    return causal_attention(batched(q, 0, b, t), batched(k, 0, b, t), batched(v, 0, b, t))
        .reshape({rows, width});
  }
  if (has_varlen_kernel(q)) {
    std::vector<std::int32_t> starts{0};
    std::int64_t longest = 0;
    for (const auto n : lengths) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(n));
      longest = std::max(longest, n);
    }
    const Tensor cumulative = at::tensor(starts, at::kInt).to(q.device());
    return std::get<0>(at::_flash_attention_forward(q, k, v, cumulative, cumulative, longest,
                                                    longest, 0.0, /*is_causal=*/true,
                                                    /*return_debug_mask=*/false))
        .reshape({rows, width});
  }
  std::vector<Tensor> parts;
  std::int64_t first = 0;
  for (const auto n : lengths) {
    parts.push_back(
        causal_attention(batched(q, first, 1, n), batched(k, first, 1, n), batched(v, first, 1, n))
            .reshape({n, width}));
    first += n;
  }
  return at::cat(parts, 0);
}

Tensor decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& mask) {
  // The query heads of one key head look at the same keys: they stand where a kernel expects query
  // positions, so that keys are read once and never repeated.
  const std::int64_t batch = q.size(0);
  const std::int64_t key_heads = keys.size(1);
  const std::int64_t group = q.size(1) / key_heads;
  const Tensor grouped = q.reshape({batch, key_heads, group, q.size(2)});
  return at::scaled_dot_product_attention(grouped, keys, values,
                                          mask.expand({batch, 1, group, keys.size(2)}))
      .reshape({batch, q.size(1) * q.size(2)});
}

void add_rows(Tensor& target, const Tensor& rows, const Tensor& values) {
  // Each device has one deterministic kernel and one that adds atomically: index_put_ is atomic for
  // float32 on the CPU with several threads, index_add_ is atomic on CUDA.
  if (target.is_cuda()) {
    target.index_put_({rows}, values, /*accumulate=*/true);
  } else {
    target.index_add_(0, rows, values);
  }
}

void add_outer(Tensor& d, const Tensor& a, const Tensor& b) {
  if (d.scalar_type() == a.scalar_type()) {
    d.addmm_(a.t(), b);
  } else {
    d.add_(at::mm(a.t(), b));
  }
}

}  // namespace ops
}  // namespace neap::model
