// Operations that Neap's own kernels compute (src/kernels/cuda), on the current stream of the GPU.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/format.h"
#include "base/status.h"
#include "bridge/streams.h"
#include "kernels/card_kernels.h"
#include "ops/aten_ops.h"

namespace neap::ops {

using at::Tensor;

namespace {

constexpr std::int64_t kMostRowsOfGrid = 65535;  // blocks along y; kernels go on from there
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kVectorBytes = 16;

// Elements of a vector where every tensor allows vectors, else 1: rows begin and end at multiples of 16 bytes.
std::int64_t vector_width(std::initializer_list<Tensor> tensors,
                          std::initializer_list<std::int64_t> lengths) {
  const std::int64_t width = kVectorBytes / tensors.begin()->element_size();
  const auto whole = [&](std::int64_t elements) { return elements % width == 0; };
  for (const Tensor& t : tensors) {
    const auto address = reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
    if (address % kVectorBytes != 0) return 1;
    for (std::int64_t i = 0; i + 1 < t.dim(); ++i)
      if (!whole(t.stride(i))) return 1;
  }
  return std::ranges::all_of(lengths, whole) ? width : 1;
}

std::string kernel_name(const char* what, const Tensor& t, std::int64_t width) {
  return format("{}_{}_{}", what, t.scalar_type() == at::kBFloat16 ? "bf16" : "f32",
                width > 1 ? "vector" : "single");
}

// `items` in blocks of at most `most` threads.
kernels::Grid grid_of(std::int64_t items, std::int64_t rows, std::int64_t most) {
  const std::int64_t threads = std::min(most, (items + kWarp - 1) / kWarp * kWarp);
  return {(items + threads - 1) / threads, std::min(rows, kMostRowsOfGrid), threads};
}

void check(const Tensor& t, const Tensor& like, const char* what) {
  if (t.scalar_type() == like.scalar_type() && t.is_cuda() && t.stride(-1) == 1) return;
  throw Error(
      ErrorCode::kInternal,
      format("{}: a kernel takes tensors of one type on a GPU with rows of neighbours", what));
}

template <class... Arguments>
void launch(const Tensor& on, const char* source, const std::string& kernel,
            const kernels::Grid& grid, Arguments... arguments) {
  kernels::CardKernels* const card =
      value_or_throw(kernels::CardKernels::of(static_cast<int>(on.device().index())));
  void* const stream = bridge::native_handle(bridge::current_stream(on.device()));
  throw_if_error(card->launch(source, kernel, grid, stream, arguments...));
}

float* numbers(const Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}
const float* read_numbers(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

// (rows, columns) as one row where all lie without gaps.
struct Extent {
  std::int64_t rows, columns;
};
Extent extent_of(std::initializer_list<Tensor> tensors) {
  const Tensor& first = *tensors.begin();
  const bool whole =
      std::ranges::all_of(tensors, [](const Tensor& t) { return t.is_contiguous(); });
  return whole ? Extent{1, first.numel()} : Extent{first.size(0), first.size(1)};
}

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
