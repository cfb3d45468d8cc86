#include "bridge/host_products.h"

#include <ATen/Functions.h>
#include <ATen/ops/_scaled_mm.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace neap::bridge {
namespace {

constexpr std::int64_t kRows = 256, kColumns = 256, kDepth = 4096;  // size of a block

bool has_half_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return true;
#endif
}

bool is_converted(const at::Tensor& a) {
  static const bool kHasProducts = has_half_products();
  return !kHasProducts && a.is_cpu() &&
         (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

// Host memory for one block of an operand.
class Block {
 public:
  explicit Block(std::int64_t size)
      : values_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size))) {}

  // rows x columns, not initialised. With `transposed`, columns are contiguous.
  [[nodiscard]] at::Tensor of_size(std::int64_t rows, std::int64_t columns,
                                   bool transposed = false) const {
    if (transposed) return of_size(columns, rows).t();
    return at::from_blob(values_.get(), {rows, columns}, at::TensorOptions().dtype(at::kFloat));
  }
  // A copy of a matrix's values with the same memory order.
  [[nodiscard]] at::Tensor holding(const at::Tensor& matrix) const {
    at::Tensor block = of_size(matrix.size(0), matrix.size(1), matrix.stride(0) < matrix.stride(1));
    return block.copy_(matrix);
  }

 private:
  std::unique_ptr<float[]> values_;
};

}  // namespace

void product_through_float32(const at::Tensor& out, const at::Tensor& start, const at::Tensor& a,
                             const at::Tensor& b, double alpha) {
  const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const std::int64_t rows = std::min(m, kRows), columns = std::min(n, kColumns);
  const std::int64_t depth = std::min(k, kDepth);
  const Block left(rows * depth), right(depth * columns), result(rows * columns);
  for (std::int64_t i = 0; i < m; i += rows)
    for (std::int64_t j = 0; j < n; j += columns) {
      const std::int64_t height = std::min(rows, m - i), width = std::min(columns, n - j);
      const auto block_of = [&](const at::Tensor& t) {
        return t.narrow(0, i, height).narrow(1, j, width);
      };
      at::Tensor sum = result.of_size(height, width);
      if (start.defined()) {
        sum.copy_(block_of(start));
      } else {
        sum.zero_();
      }
      for (std::int64_t l = 0; l < k; l += depth) {
        const std::int64_t length = std::min(depth, k - l);
        sum.addmm_(left.holding(a.narrow(0, i, height).narrow(1, l, length)),
                   right.holding(b.narrow(0, l, length).narrow(1, j, width)), 1, alpha);
      }
      block_of(out).copy_(sum);
    }
}

at::Tensor& product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (!is_converted(a)) return at::mm_out(out, a, b);
  product_through_float32(out, {}, a, b);
  return out;
}

at::Tensor& product_plus_out(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                             const at::Tensor& b) {
  if (!is_converted(a)) return at::addmm_out(out, bias, a, b);
  product_through_float32(out, bias.expand_as(out), a, b);
  return out;
}

void add_product_(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double alpha) {
  if (is_converted(a)) {
    product_through_float32(c, c, a, b, alpha);
  } else if (c.scalar_type() == a.scalar_type()) {
    c.addmm_(a, b, 1, alpha);
  } else {
    at::Tensor sum = c;
    (void)at::addmm_out(sum, c, a, b, c.scalar_type(), 1, alpha);
  }
}

at::Tensor& fp8_product_out(at::Tensor& out, const Fp8Matrix& a, const Fp8Matrix& b,
                            const at::Tensor& bias, bool fast) {
  const at::Tensor across = b.values.t();
  if (out.is_cuda())
    return at::_scaled_mm_out(out, a.values, across, a.scale, b.scale,
                              bias.defined() ? std::optional(bias) : std::nullopt, std::nullopt,
                              out.scalar_type(), fast);
  const float scale = *a.scale.const_data_ptr<float>() * *b.scale.const_data_ptr<float>();
  const std::int64_t k = std::min(a.values.size(1), across.size(0));  // one may end with zeros
  product_through_float32(out, bias.defined() ? bias.expand_as(out) : at::Tensor(),
                          a.values.narrow(1, 0, k), across.narrow(0, 0, k), scale);
  return out;
}

at::Tensor& batch_product_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (!is_converted(a)) return at::bmm_out(out, a, b);
  for (std::int64_t i = 0; i < a.size(0); ++i)
    product_through_float32(out.select(0, i), {}, a.select(0, i), b.select(0, i));
  return out;
}

}  // namespace neap::bridge
