#include "step/counting/counting_ops.h"

namespace neap::step {

void CountingOps::to_fp8(Fp8Copies<CountedTensor>& copies, const CountedTensor& x, Fp8Format,
                         Fp8Sides sides) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const bool known = copies.scale.defined();
  CountedTensor found;
  if (!known) {
    copies.scale = make({1}, Dtype::kFloat32);
    if (cuda()) found = make({fp8_blocks(rows * columns)}, Dtype::kFloat32);
    add_traffic(bytes(x));
  }
  double written = 0;
  if (sides != Fp8Sides::kColumns) {
    copies.rows = make({rows, columns}, Dtype::kBool);
    written += bytes(copies.rows);
  }
  if (sides != Fp8Sides::kRows) {
    copies.columns = make({columns, fp8_padded(rows)}, Dtype::kBool);
    written += bytes(copies.columns);
  }
  add_traffic(bytes(x) + written);
}

CountedTensor CountingOps::fp8_product(const Fp8Factor<CountedTensor>& a,
                                       const Fp8Factor<CountedTensor>& b, Dtype dtype, Fp8Sums,
                                       const CountedTensor&) {
  CountedTensor out = make({a.values.size(0), b.values.size(0)}, dtype);
  const double flops = 2.0 * static_cast<double>(a.values.shape().elements()) *
                       static_cast<double>(b.values.size(0));
  add_fp8_product(flops, bytes(a.values) + bytes(b.values) + bytes(out));
  return out;
}

}  // namespace neap::step
