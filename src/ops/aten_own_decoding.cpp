// Parts of decoding that Neap's own kernels compute (src/kernels/cuda), on the current stream of the GPU.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>

#include "base/format.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using namespace own;

Tensor AtenOps::products(const Tensor& x, const Tensor& w) const {
  Tensor out = at::empty({w.size(0), x.size(0), w.size(1)}, x.options());
  return at::bmm_out(out, x.unsqueeze(0).expand({w.size(0), -1, -1}), w.transpose(1, 2));
}

Tensor AtenOps::norm_and_add_(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, double eps, const Tensor& added) const {
  check_whole(weight, x, "norm");
  check(x, x, "norm");
  Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  const std::int64_t columns = x.size(1);
  const std::int64_t width = vector_width(
      {x, y, weight, bias.defined() ? bias : weight, added.defined() ? added : weight}, {columns});
  kernels::Grid grid = grid_of(columns / width, 1, 1024);
  grid.x = x.size(0);
  launch(x, "norm", kernel_name("norm", x, width), grid, y.mutable_data_ptr(), x.mutable_data_ptr(),
         x.stride(0), weight.const_data_ptr(), bias.defined() ? bias.const_data_ptr() : nullptr,
         added.defined() ? added.const_data_ptr() : nullptr, columns, static_cast<float>(eps),
         kind == spec::NormKind::kRmsOffset ? 1.0F : 0.0F,
         static_cast<int>(kind == spec::NormKind::kLayerNorm));
  return y;
}

Tensor AtenOps::append_(const Tensor& keys, const Tensor& values, const Tensor& positions,
                        const step::Heads<Tensor>& heads,
                        const step::Rotation<Tensor>& rotation) const {
  const Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  for (const Tensor& t : {k, v, keys, values}) check(t, q, "heads of new tokens");
  check(positions, positions, "positions of new tokens");
  Tensor turned = at::empty(q.sizes(), q.options());
  if (q.numel() == 0) return turned;
  struct {  // Append of append.cu
    std::int64_t q_row, q_head, k_row, k_head, v_row, v_head, keys_row, keys_head, values_row,
        values_head;
    int heads, key_heads, width, half;
    float factor;
  } by{};
  const auto place = [](std::int64_t& row, std::int64_t& head, const Tensor& t) {
    row = t.stride(0);
    head = t.stride(1);
  };
  place(by.q_row, by.q_head, q);
  place(by.k_row, by.k_head, k);
  place(by.v_row, by.v_head, v);
  place(by.keys_row, by.keys_head, keys);
  place(by.values_row, by.values_head, values);
  by.heads = static_cast<int>(q.size(1));
  by.key_heads = static_cast<int>(k.size(1));
  by.width = static_cast<int>(q.size(2));
  const Tensor& frequencies = rotation.frequencies;
  by.half = frequencies.defined() ? static_cast<int>(frequencies.size(0)) : 0;
  by.factor = static_cast<float>(rotation.attention_factor);
  const auto bias = [](const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; };
  const std::int64_t pairs = (q.size(2) + 1) / 2;
  launch(q, "append", format("append_{}", type_name(q)),
         {q.size(0), q.size(1) + 2 * k.size(1), (pairs + kWarp - 1) / kWarp * kWarp},
         turned.mutable_data_ptr(), keys.mutable_data_ptr(), values.mutable_data_ptr(),
         q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), bias(heads.q_bias),
         bias(heads.k_bias), bias(heads.v_bias), positions.const_data_ptr<std::int64_t>(),
         read_numbers(frequencies), by);
  return turned;
}

}  // namespace neap::ops
