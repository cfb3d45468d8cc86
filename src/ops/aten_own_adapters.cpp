// Adapters in decoding by Neap's kernel (src/kernels/cuda/adapters.cu), on the current stream of the GPU.
#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/format.h"
#include "kernels/decoding_sizes.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using namespace own;

namespace {

using Adapters = kernels::decoding::Adapters<void>;
constexpr const char* kAdapters = "adapters of few rows";

// How the sums of rows y are written.
struct AdapterSums {
  const Tensor &out, &y;
  int activation = kernels::decoding::kNoActivation;
  bool adds = false;   // to out's values
  bool gated = false;  // out = activation(first) * second
};

Adapters adapters_of(const step::RowAdapters<Tensor>& by, const Tensor& y) {
  using namespace kernels::decoding;
  Adapters to{};
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < by.up.size(); ++i) {
    const Tensor& up = by.up[i];
    to.out[i] = static_cast<int>(by.out[i]);
    columns += by.out[i];
    if (!up.defined()) continue;
    check_whole(up, y, kAdapters);
    const std::int64_t rank = up.size(1);
    if (up.size(0) != by.out[i] || rank % kOfLane != 0 || rank > kMostRank)
      throw Error(ErrorCode::kInternal, format("{}: a matrix of {} x {} for {} columns", kAdapters,
                                               up.size(0), rank, by.out[i]));
    to.up[i] = up.const_data_ptr();
    to.rank[i] = static_cast<int>(rank);
    to.scale[i] = static_cast<float>(by.scale[i]);
    columns += rank;
  }
  if (columns != y.size(1))
    throw Error(ErrorCode::kInternal,
                format("{}: rows of {} columns, not {}", kAdapters, y.size(1), columns));
  return to;
}

void add_adapters(const AdapterSums& s, const step::RowAdapters<Tensor>& by) {
  using namespace kernels::decoding;
  check_whole(s.y, s.y, kAdapters);
  check(s.out, s.y, kAdapters);
  const Adapters adapters = adapters_of(by, s.y);
  const std::int64_t rows = s.y.size(0);
  const std::int64_t columns =
      s.gated ? by.out[0] : std::int64_t{adapters.out[0]} + adapters.out[1] + adapters.out[2];
  if (rows == 0) return;
  if (s.out.size(0) != rows || s.out.size(1) < columns || (s.gated && by.out[0] != by.out[1]))
    throw Error(ErrorCode::kInternal, format("{}: results of other sizes", kAdapters));
  const auto chunks = static_cast<unsigned>(*std::ranges::max_element(adapters.rank) / kOfLane);
  launch(s.y, "adapters", format("adapters_{}", std::bit_ceil(std::max(chunks, 1U))),
         {(columns + kAdapterThreads - 1) / kAdapterThreads, (rows + kTile - 1) / kTile,
          kAdapterThreads, 1, /*early=*/true},
         s.out.mutable_data_ptr(), s.out.stride(0), s.y.const_data_ptr(), s.y.stride(0), adapters,
         static_cast<int>(rows), s.activation, static_cast<int>(s.adds), static_cast<int>(s.gated));
}

}  // namespace

void AtenOps::add_row_adapters_(const Tensor& y, const step::RowAdapters<Tensor>& by) const {
  add_adapters({.out = y, .y = y}, by);
}
void AtenOps::add_adapted_rows_(const Tensor& sum, const Tensor& y,
                                const step::RowAdapters<Tensor>& by) const {
  add_adapters({.out = sum, .y = y, .adds = true}, by);
}
Tensor AtenOps::gate_adapted_rows(const Tensor& y, const step::RowAdapters<Tensor>& by,
                                  spec::Activation kind) const {
  Tensor out = at::empty({y.size(0), by.out[0]}, y.options());
  add_adapters({.out = out, .y = y, .activation = static_cast<int>(kind), .gated = true}, by);
  return out;
}

}  // namespace neap::ops
