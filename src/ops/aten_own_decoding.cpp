// Parts of decoding that Neap's own kernels compute (src/kernels/cuda), on the current stream of the GPU.
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "base/format.h"
#include "bridge/torch_dtypes.h"
#include "kernels/decoding_sizes.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using namespace own;
using kernels::decoding::HeadStrides;
using kernels::decoding::kNoActivation;
using kernels::decoding::kTile;

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
  grid.early = true;
  launch(x, "norm", kernel_name("norm", x, width), grid, y.mutable_data_ptr(), x.mutable_data_ptr(),
         x.stride(0), weight.const_data_ptr(), bias.defined() ? bias.const_data_ptr() : nullptr,
         added.defined() ? added.const_data_ptr() : nullptr, columns, static_cast<float>(eps),
         kind == spec::NormKind::kRmsOffset ? 1.0F : 0.0F,
         static_cast<int>(kind == spec::NormKind::kLayerNorm));
  return y;
}

namespace {

HeadStrides strides_of(const step::Heads<Tensor>& heads, const Tensor& keys, const Tensor& values) {
  for (const Tensor& t : {heads.k, heads.v, keys, values}) check(t, heads.q, "heads of new tokens");
  return {heads.q.stride(0), heads.q.stride(1), heads.k.stride(0), heads.k.stride(1),
          heads.v.stride(0), heads.v.stride(1), keys.stride(0),    keys.stride(1),
          values.stride(0),  values.stride(1)};
}
kernels::decoding::HeadNorms norms_of(const step::Heads<Tensor>& heads) {
  for (const Tensor& t : {heads.q_norm.weight, heads.k_norm.weight})
    if (t.defined()) check(t, heads.q, "norms of new tokens");
  return {static_cast<float>(heads.q_norm.eps), static_cast<float>(heads.q_norm.offset)};
}
const void* pointer(const Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}
int half_turn(const step::Rotation<Tensor>& rotation) {
  const Tensor& frequencies = rotation.frequencies;
  return frequencies.defined() ? static_cast<int>(frequencies.size(0)) : 0;
}

}  // namespace

Tensor AtenOps::append_(const Tensor& keys, const Tensor& values, const Tensor& positions,
                        const step::Heads<Tensor>& heads,
                        const step::Rotation<Tensor>& rotation) const {
  const Tensor& q = heads.q;
  check(positions, positions, "positions of new tokens");
  const kernels::decoding::Append by{strides_of(heads, keys, values),
                                     norms_of(heads),
                                     static_cast<int>(q.size(1)),
                                     static_cast<int>(heads.k.size(1)),
                                     static_cast<int>(q.size(2)),
                                     half_turn(rotation),
                                     static_cast<float>(rotation.attention_factor)};
  Tensor turned = at::empty(q.sizes(), q.options());
  if (q.numel() == 0) return turned;
  const std::int64_t pairs = (q.size(2) + 1) / 2;
  launch(q, "append", format("append_{}", type_name(q)),
         {q.size(0), q.size(1) + 2 * heads.k.size(1), (pairs + kWarp - 1) / kWarp * kWarp},
         turned.mutable_data_ptr(), keys.mutable_data_ptr(), values.mutable_data_ptr(),
         q.const_data_ptr(), heads.k.const_data_ptr(), heads.v.const_data_ptr(),
         pointer(heads.q_bias), pointer(heads.k_bias), pointer(heads.v_bias),
         pointer(heads.q_norm.weight), pointer(heads.k_norm.weight),
         positions.const_data_ptr<std::int64_t>(), read_numbers(rotation.frequencies), by);
  return turned;
}

namespace {

// A step's attention in a block. `table` is undefined for slots.
struct Attention {
  const Tensor &keys, &values, &table, &positions;
  const step::Heads<Tensor>& heads;
  const step::Rotation<Tensor>& rotation;
  const step::KeyLimit& limit;
  const step::ScoreOptions& options;
};

kernels::decoding::Attend arguments_of(const Attention& a, std::int64_t shares) {
  return {strides_of(a.heads, a.keys, a.values),
          norms_of(a.heads),
          static_cast<int>(a.heads.q.size(1)),
          static_cast<int>(a.heads.k.size(1)),
          static_cast<int>(a.heads.q.size(2)),
          half_turn(a.rotation),
          static_cast<float>(a.rotation.attention_factor),
          static_cast<float>(a.options.scale * std::numbers::log2e),
          static_cast<int>(a.options.window),
          static_cast<int>(step::attend_share(a.limit.rounded, shares)),
          a.table.defined() ? static_cast<int>(a.table.stride(0)) : 0};
}

Tensor append_and_attend(const Attention& a) {
  constexpr std::int64_t kFewBlocks = 1024;  // up to this number, blocks may have more threads
  const Tensor& q = a.heads.q;
  check(a.positions, a.positions, "positions of new tokens");
  const std::int64_t rows = q.size(0), count = q.size(1), width = q.size(2);
  if (q.numel() == 0) return at::empty({rows, count * width}, q.options());
  const std::int64_t shares = step::attend_shares(rows * count, a.limit.rounded);
  const kernels::decoding::Attend by = arguments_of(a, shares);
  Tensor out = at::empty({rows, count * width}, q.options());
  const Tensor parts =
      shares > 1 ? at::empty({rows * count, shares, width + 2}, q.options().dtype(at::kFloat))
                 : Tensor();
  const std::int64_t lanes = width <= 64 ? 8 : width <= 128 ? 16 : 32;
  const std::int64_t groups = a.heads.k.size(1), of_key = count / groups;
  const std::int64_t of_block = step::attend_heads(rows, count, groups);
  const std::int64_t blocks = groups * ((of_key + of_block - 1) / of_block);  // of a row
  const std::int64_t warps = of_block > 1 || rows * count * shares < kFewBlocks ? 8 : 4;
  launch(q, a.table.defined() ? "attend_pages" : "attend",
         format("attend_{}_{}{}", lanes, warps, of_block > 1 ? "_shared" : ""),
         {rows, blocks, kWarp * warps, shares, /*early=*/true}, out.mutable_data_ptr(),
         numbers(parts), a.keys.mutable_data_ptr(), a.values.mutable_data_ptr(), pointer(a.table),
         q.const_data_ptr(), a.heads.k.const_data_ptr(), a.heads.v.const_data_ptr(),
         pointer(a.heads.q_bias), pointer(a.heads.k_bias), pointer(a.heads.v_bias),
         pointer(a.heads.q_norm.weight), pointer(a.heads.k_norm.weight),
         a.positions.const_data_ptr<std::int64_t>(), read_numbers(a.rotation.frequencies), by);
  if (shares > 1)
    launch(q, "attend", "merge_shares",
           {rows * count, 1, (width + kWarp - 1) / kWarp * kWarp, 1, /*early=*/true},
           out.mutable_data_ptr(), read_numbers(parts), static_cast<int>(width),
           static_cast<int>(shares));
  return out;
}

}  // namespace

Tensor AtenOps::append_and_attend_(const Tensor& keys, const Tensor& values,
                                   const Tensor& positions, const step::Heads<Tensor>& heads,
                                   const step::Rotation<Tensor>& rotation,
                                   const step::KeyLimit& limit,
                                   const step::ScoreOptions& options) const {
  return append_and_attend({keys, values, Tensor(), positions, heads, rotation, limit, options});
}
Tensor AtenOps::append_and_attend_pages_(const step::PagedKeys<Tensor>& cache,
                                         const Tensor& positions, const step::Heads<Tensor>& heads,
                                         const step::Rotation<Tensor>& rotation,
                                         const step::KeyLimit& limit,
                                         const step::ScoreOptions& options) const {
  if (cache.keys.strides() != cache.values.strides() || cache.keys.stride(2) != heads.q.size(2))
    throw Error(ErrorCode::kInternal, "attend: pages of keys and values differ");
  return append_and_attend(
      {cache.keys, cache.values, cache.table, positions, heads, rotation, limit, options});
}

namespace {

using Matrices = kernels::decoding::Matrices<void>;
using RowsNorm = kernels::decoding::RowsNorm<void>;
constexpr std::int64_t kThreads = kWarp * kernels::decoding::kWarps;
constexpr const char* kRowProduct = "product of few rows";

Matrices matrices_of(const step::FewMatrices<Tensor>& by, const Tensor& x) {
  Matrices to{};
  for (std::size_t i = 0; i < by.weight.size(); ++i) {
    const Tensor &w = by.weight[i], &bias = by.bias[i];
    if (!w.defined()) continue;
    check_whole(w, x, kRowProduct);
    if (w.size(1) != x.size(1))
      throw Error(ErrorCode::kInternal, format("{}: rows of {} columns by matrices of {}",
                                               kRowProduct, x.size(1), w.size(1)));
    if (bias.defined()) check(bias, x, kRowProduct);
    if (w.size(0) % kernels::decoding::kTile != 0 || (bias.defined() && bias.numel() != w.size(0)))
      throw Error(ErrorCode::kInternal,
                  format("{}: a matrix of {} rows, and a bias of {} elements", kRowProduct,
                         w.size(0), bias.defined() ? bias.numel() : 0));
    to.weight[i] = w.const_data_ptr();
    to.bias[i] = pointer(bias);
    to.out[i] = static_cast<int>(w.size(0));
  }
  return to;
}
bool pairs_of_tiles(const Matrices& by) {
  return std::ranges::all_of(by.out, [](int n) { return n % (2 * kTile) == 0; });
}
RowsNorm norm_before(const step::RowsNorm<Tensor>& norm, const Tensor& x) {
  if (!norm.weight.defined()) return {};
  for (const Tensor& t : {norm.weight, norm.bias}) {
    if (!t.defined()) continue;
    check_whole(t, x, kRowProduct);
    if (t.numel() != x.size(1))
      throw Error(ErrorCode::kInternal, format("{}: a norm of {} columns for rows of {}",
                                               kRowProduct, t.numel(), x.size(1)));
  }
  return {norm.weight.const_data_ptr(), pointer(norm.bias), static_cast<float>(norm.eps),
          norm.kind == spec::NormKind::kRmsOffset ? 1.0F : 0.0F,
          static_cast<int>(norm.kind == spec::NormKind::kLayerNorm)};
}
// A product of rows x, or their norm, with matrices, to y, and its epilogue.
struct RowsProduct {
  const Tensor &y, &x;
  Matrices matrices;
  int activation = kNoActivation;
  bool adds = false;   // to y's values
  bool gated = false;  // y = activation(first) * second
  RowsNorm norm{};

  [[nodiscard]] std::int64_t out() const { return matrices.columns(); }
};
void multiply_some(const step::OwnKernels& own, const RowsProduct& p) {
  using namespace kernels::decoding;
  const std::int64_t rows = p.x.size(0), columns = p.x.size(1);
  const std::int64_t of_block = p.gated ? kRowsOfBlock / 2 : kRowsOfBlock;
  constexpr auto kTiles = std::to_array({1, 2, 4, 6, kMostTiles});  // of the kernels
  const int tiles =
      *std::ranges::find_if(kTiles, [&](std::int64_t n) { return n * kTile >= rows; });
  const step::RowsGrid by = own.rows_grid(columns, p.out());
  kernels::Grid grid{by.cluster, (p.y.size(1) + of_block - 1) / of_block, kSomeRowsThreads};
  grid.early = true;
  grid.cluster = by.cluster;
  grid.shared = std::int64_t{ring_of(tiles, static_cast<int>(by.blocks))} * bytes_of_chunk(tiles);
  launch(p.x, "some_rows", format("some_rows_{}_{}", tiles, by.blocks), grid,
         p.y.mutable_data_ptr(), p.x.const_data_ptr(), p.matrices, p.x.stride(0),
         static_cast<int>(rows), static_cast<int>(columns), p.activation, static_cast<int>(p.adds),
         static_cast<int>(p.gated));
}
void multiply_few(const RowsProduct& p) {
  const int rows = static_cast<int>(p.x.size(0)), columns = static_cast<int>(p.x.size(1));
  if (p.gated) {
    launch(p.x, "few_rows", "few_rows_gated", {p.y.size(1) / kTile, 1, kThreads, 1, /*early=*/true},
           p.y.mutable_data_ptr(), p.x.const_data_ptr(), p.matrices, p.x.stride(0), rows, columns,
           p.activation);
    return;
  }
  // Large matrices fill the GPU with blocks of two tiles. For others with many columns, more tiles
  // are in flight.
  constexpr std::int64_t kShortColumns = 1024, kManyRows = 4096;
  const bool wide = p.y.size(1) >= kManyRows && pairs_of_tiles(p.matrices);
  const char* const kernel = wide ? "wide" : columns <= kShortColumns ? "short" : "long";
  launch(p.x, "few_rows", format("few_rows_{}", kernel),
         {p.y.size(1) / (wide ? 2 * kTile : kTile), 1, kThreads, 1, /*early=*/true},
         p.y.mutable_data_ptr(), p.x.const_data_ptr(), p.matrices, p.x.stride(0), rows, columns,
         p.activation, static_cast<int>(p.adds));
}
void multiply_normed(const step::OwnKernels& own, const RowsProduct& p) {
  using namespace kernels::decoding;
  const int rows = static_cast<int>(p.x.size(0)), columns = static_cast<int>(p.x.size(1));
  const std::int64_t rounds = std::max(2, (columns + kRoundColumns - 1) / kRoundColumns);
  // A multiprocessor has two blocks, or one that reads four rounds of two tiles at once.
  const bool most = rounds == kMostNormed / kRoundColumns;
  const bool wide = most && !p.gated && pairs_of_tiles(p.matrices);
  const std::int64_t tiles = p.y.size(1) / (wide ? 2 * kTile : kTile);
  const std::int64_t at_once = own.multiprocessors * (wide || (most && p.gated) ? 1 : 2);
  launch(p.x, "normed_rows",
         format("normed_rows_{}{}",
                p.gated ? "gated_"
                : wide  ? "wide_"
                        : "",
                rounds),
         {std::min(tiles, at_once), 1, kThreads, 1, /*early=*/true}, p.y.mutable_data_ptr(),
         p.x.const_data_ptr(), p.matrices, p.x.stride(0), rows, columns, p.activation, p.norm);
}
void multiply_rows(const step::OwnKernels& own, const RowsProduct& p) {
  const std::int64_t rows = p.x.size(0);
  if (rows == 0) return;
  check(p.x, p.x, kRowProduct);
  check_whole(p.y, p.x, kRowProduct);
  if (p.y.size(0) != rows || p.y.size(1) * (p.gated ? 2 : 1) != p.out() ||
      (p.gated && p.matrices.out[0] != p.matrices.out[1]))
    throw Error(ErrorCode::kInternal, format("{}: results of other sizes", kRowProduct));
  if (p.x.stride(1) != 1 || vector_width({p.x}, {p.x.size(1)}) == 1)
    throw Error(ErrorCode::kInternal, format("{}: a kernel takes rows of vectors", kRowProduct));
  const step::Dtype dtype = bridge::to_step(p.x.scalar_type());
  if (p.norm.weight != nullptr) {
    if (!own.normalizes(dtype, rows, p.x.size(1), p.out()))
      throw Error(ErrorCode::kInternal, format("{}: no kernel for their norm", kRowProduct));
    multiply_normed(own, p);
    return;
  }
  switch (own.row_product(dtype, rows, p.x.size(1), p.out())) {
    case step::RowProduct::kFewRows:
      multiply_few(p);
      return;
    case step::RowProduct::kSomeRows:
      multiply_some(own, p);
      return;
    case step::RowProduct::kLibrary:
      break;
  }
  throw Error(ErrorCode::kInternal,
              format("{}: no kernel takes {} rows of {} columns", kRowProduct, rows, p.x.size(1)));
}

}  // namespace

Tensor AtenOps::few_rows_products(const Tensor& x, const step::FewMatrices<Tensor>& by) const {
  std::int64_t columns = 0;
  for (const Tensor& w : by.weight) columns += w.defined() ? w.size(0) : 0;
  Tensor y = at::empty({x.size(0), columns}, x.options());
  multiply_rows(kernels_.own,
                {.y = y, .x = x, .matrices = matrices_of(by, x), .norm = norm_before(by.norm, x)});
  return y;
}
Tensor AtenOps::few_rows_activated(const Tensor& x, const step::FewMatrices<Tensor>& by,
                                   spec::Activation kind) const {
  Tensor y = at::empty({x.size(0), by.weight[0].size(0)}, x.options());
  multiply_rows(kernels_.own, {.y = y,
                               .x = x,
                               .matrices = matrices_of(by, x),
                               .activation = static_cast<int>(kind),
                               .norm = norm_before(by.norm, x)});
  return y;
}
void AtenOps::add_few_rows_(const Tensor& sum, const Tensor& x, const Tensor& w,
                            const Tensor& bias) const {
  multiply_rows(kernels_.own,
                {.y = sum, .x = x, .matrices = matrices_of({{w}, {bias}}, x), .adds = true});
}
Tensor AtenOps::few_rows_gated(const Tensor& x, const step::FewMatrices<Tensor>& by,
                               spec::Activation kind) const {
  Tensor y = at::empty({x.size(0), by.weight[0].size(0)}, x.options());
  multiply_rows(kernels_.own, {.y = y,
                               .x = x,
                               .matrices = matrices_of(by, x),
                               .activation = static_cast<int>(kind),
                               .gated = true,
                               .norm = norm_before(by.norm, x)});
  return y;
}

}  // namespace neap::ops
