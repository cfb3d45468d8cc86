// Operations that Neap's own kernels compute (src/kernels/cuda), on the current stream of the GPU.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "base/format.h"
#include "kernels/norm_sizes.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using namespace own;

namespace {

constexpr std::int64_t kAdamWVector = 4;  // of adamw.cu

}  // namespace

void AtenOps::gate_into(const Tensor& out, const Tensor& gate, const Tensor& up,
                        spec::Activation kind) const {
  for (const Tensor& t : {gate, up}) check(t, out, "act(gate) up");
  if (out.numel() == 0) return;
  const auto [rows, columns] = extent_of({out, gate, up});
  const std::int64_t width = vector_width({out, gate, up}, {columns});
  launch(out, "gated", kernel_name("product", out, width), grid_of(columns / width, rows, 256),
         out.mutable_data_ptr(), out.stride(0), gate.const_data_ptr(), gate.stride(0),
         up.const_data_ptr(), up.stride(0), rows, columns, static_cast<int>(kind));
}

void AtenOps::gate_backward_into(const Tensor& d_gate, const Tensor& d_up, const Tensor& d,
                                 const Tensor& gate, const Tensor& up,
                                 spec::Activation kind) const {
  for (const Tensor& t : {d_gate, d_up, gate, up}) check(t, d, "act(gate) up backward");
  if (d.numel() == 0) return;
  const auto [rows, columns] = extent_of({d, d_gate, d_up, gate, up});
  const std::int64_t width = vector_width({d, d_gate, d_up, gate, up}, {columns});
  launch(d, "gated", kernel_name("backward", d, width), grid_of(columns / width, rows, 256),
         d_gate.mutable_data_ptr(), d_gate.stride(0), d_up.mutable_data_ptr(), d_up.stride(0),
         d.const_data_ptr(), d.stride(0), gate.const_data_ptr(), gate.stride(0),
         up.const_data_ptr(), up.stride(0), rows, columns, static_cast<int>(kind));
}

Tensor AtenOps::turned(const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) const {
  for (const Tensor& t : {cos, sin}) check(t, x, "rotation");
  Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const std::int64_t heads = x.size(1);
  const std::int64_t half = cos.size(-1);
  const std::int64_t rest = x.size(2) - 2 * half;
  const std::int64_t width = vector_width({x, y, cos, sin}, {half, rest});
  launch(x, "rotation", kernel_name("turn", x, width),
         grid_of(heads * (half + rest) / width, x.size(0), 256), y.mutable_data_ptr(),
         x.const_data_ptr(), x.stride(0), x.stride(1), cos.const_data_ptr(), sin.const_data_ptr(),
         x.size(0), heads, x.size(2), half, cos.size(0), static_cast<float>(sign));
  return y;
}

namespace {

using kernels::norm::kHeadThreads, kernels::norm::kOfThread;

struct NormLaunch {
  std::string kernel;
  kernels::Grid grid;
};
// `blocks`: of rows of which each is read by a block.
NormLaunch norm_launch(const char* what, const Tensor& x, std::int64_t blocks) {
  const std::int64_t columns = x.size(1);
  if (const std::int64_t lanes = step::norm_lanes(columns); lanes > 0)
    return {format("{}_heads_{}_{}", what, type_name(x), lanes), {blocks, 1, kHeadThreads}};
  return {kernel_name(what, x, kVectorBytes),
          {blocks, 1, (columns / kOfThread + kWarp - 1) / kWarp * kWarp}};
}

}  // namespace

std::pair<Tensor, Tensor> AtenOps::own_rms_norm(const Tensor& x, const Tensor& weight,
                                                double eps) const {
  Tensor y = at::empty(x.sizes(), x.options());
  Tensor rstd = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  const std::int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0) return {y, rstd};
  for (const Tensor& t : {x, weight}) check_whole(t, x, "RMS norm");
  const std::int64_t lanes = step::norm_lanes(columns);
  const std::int64_t of_block = lanes > 0 ? kHeadThreads / lanes * kernels::norm::kRowsOfLanes : 1;
  const NormLaunch by = norm_launch("forward", x, (rows + of_block - 1) / of_block);
  launch(x, "rms_norm", by.kernel, by.grid, y.mutable_data_ptr(), rstd.mutable_data_ptr<float>(),
         x.const_data_ptr(), weight.const_data_ptr(), rows, columns, static_cast<float>(eps));
  return {y, rstd};
}

Tensor AtenOps::own_rms_norm_backward(spec::NormKind kind, const Tensor& dy, const Tensor& x,
                                      const Tensor& rstd, const Tensor& weight,
                                      const Tensor& d_weight, const Tensor& added) const {
  Tensor dx = at::empty(x.sizes(), x.options());
  const std::int64_t rows = x.size(0);
  const std::int64_t columns = x.size(1);
  const std::int64_t blocks = step::norm_blocks(rows);
  const Tensor sums =
      d_weight.defined() ? at::empty({blocks, columns}, x.options().dtype(at::kFloat)) : Tensor();
  if (rows == 0) return dx;
  for (const Tensor& t : {dy, x, weight, added.defined() ? added : x})
    check_whole(t, x, "RMS norm backward");
  const NormLaunch by = norm_launch("backward", x, blocks);
  launch(x, "rms_norm", by.kernel, by.grid, dx.mutable_data_ptr(), dy.const_data_ptr(),
         x.const_data_ptr(), rstd.const_data_ptr<float>(), weight.const_data_ptr(),
         added.defined() ? added.const_data_ptr() : nullptr, numbers(sums), rows, columns,
         kind == spec::NormKind::kRmsOffset ? 1.0F : 0.0F);
  if (!d_weight.defined()) return dx;
  constexpr std::int64_t kLanes = 32, kThreads = 256;
  launch(x, "rms_norm", format("add_sums_{}", type_name(d_weight)),
         {(columns + kLanes - 1) / kLanes, 1, kThreads}, d_weight.mutable_data_ptr(),
         read_numbers(sums), blocks, columns);
  return dx;
}

void AtenOps::own_add_to_rows_(const Tensor& table, const Tensor& indices,
                               const Tensor& rows) const {
  check(rows, rows, "rows");
  check(table, table, "table");
  check(indices, indices, "indices");
  if (rows.numel() == 0) return;
  const std::int64_t columns = rows.size(1);
  const std::int64_t width = vector_width({rows}, {columns});
  const kernels::Grid of_row = grid_of(columns / width, 1, 256);
  launch(rows, "add_rows", kernel_name(format("add_{}", type_name(table)), rows, width),
         {rows.size(0), of_row.x, of_row.threads}, table.mutable_data_ptr(), table.stride(0),
         indices.const_data_ptr<std::int64_t>(), rows.const_data_ptr(), rows.stride(0),
         rows.size(0), columns);
}

void AtenOps::own_adamw_(const step::AdamWTensors<Tensor>& t, double scale, std::int64_t step,
                         double lr, const spec::OptimizerConfig& config) const {
  struct {  // AdamW of adamw.cu
    float scale, keep, beta1, rest1, beta2, rest2, step_size, root, eps;
  } by{};
  const auto number = [](double x) { return static_cast<float>(x); };
  const auto at_step = static_cast<double>(step);
  by.scale = number(scale);
  by.keep = number(1 - lr * config.weight_decay);
  by.beta1 = number(config.beta1);
  by.rest1 = number(1 - config.beta1);
  by.beta2 = number(config.beta2);
  by.rest2 = number(1 - config.beta2);
  by.step_size = number(lr / (1 - std::pow(config.beta1, at_step)));
  by.root = number(std::sqrt(1 - std::pow(config.beta2, at_step)));
  by.eps = number(config.eps);
  for (const Tensor& state : {t.average, t.square}) check(state, t.x, "AdamW");
  check(t.gradient, t.gradient, "AdamW");
  if (t.copy.defined()) check(t.copy, t.copy, "AdamW");
  const std::int64_t count = t.x.numel();
  if (count == 0) return;
  const Tensor& copy = t.copy.defined() ? t.copy : t.x;
  const bool vectors =
      std::ranges::all_of(std::initializer_list<Tensor>{t.x, t.average, t.square, t.gradient, copy},
                          [](const Tensor& one) { return address_of(one) % kVectorBytes == 0; });
  const std::int64_t width = vectors && count % kAdamWVector == 0 ? kAdamWVector : 1;
  launch(t.x, "adamw", kernel_name("update", t.gradient, width), grid_of(count / width, 1, 256),
         t.x.mutable_data_ptr(), t.average.mutable_data_ptr(), t.square.mutable_data_ptr(),
         t.gradient.const_data_ptr(), t.copy.defined() ? t.copy.mutable_data_ptr() : nullptr, count,
         by);
}

void AtenOps::logit_values_into(const Tensor& log_probs, const Tensor& log_sums,
                                const Tensor& entropies, const Tensor& rights, const Tensor& logits,
                                const Tensor& targets, const step::LogitShape& shape) const {
  check(logits, logits, "values of logits");
  if (logits.numel() == 0) return;
  const std::int64_t columns = logits.size(1);
  const std::int64_t width = vector_width({logits}, {columns});
  kernels::Grid grid = grid_of(columns / width, 1, 1024);
  grid.x = logits.size(0);
  launch(logits, "logits", kernel_name("values", logits, width), grid, logits.const_data_ptr(),
         logits.stride(0), targets.const_data_ptr<std::int64_t>(), numbers(log_probs),
         numbers(log_sums), numbers(entropies), numbers(rights), columns,
         static_cast<float>(shape.softcap), static_cast<float>(shape.divisor));
}

void AtenOps::logit_gradient_(const Tensor& logits, const Tensor& targets, const Tensor& log_sums,
                              const Tensor& d_log_probs, const Tensor& entropies,
                              const Tensor& d_entropies, const step::LogitShape& shape) const {
  check(logits, logits, "gradient of logits");
  if (logits.numel() == 0) return;
  const std::int64_t columns = logits.size(1);
  const std::int64_t width = vector_width({logits}, {columns});
  kernels::Grid grid = grid_of(columns / width, 1, 1024);
  grid.x = logits.size(0);
  launch(logits, "logits", kernel_name("gradient", logits, width), grid, logits.mutable_data_ptr(),
         logits.stride(0), targets.const_data_ptr<std::int64_t>(), read_numbers(log_sums),
         read_numbers(d_log_probs), read_numbers(entropies), read_numbers(d_entropies), columns,
         static_cast<float>(shape.softcap), static_cast<float>(shape.divisor));
}

}  // namespace neap::ops
