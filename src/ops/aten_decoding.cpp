// Decoding attention on libtorch: one query per sequence, with a cache.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "bridge/runtime.h"
#include "ops/aten_ops.h"
#include "step/attention/decoding.h"
#include "step/model/page_table.h"

namespace neap::ops {

using at::Tensor;

namespace {

// Views cache (B, K, T, D) as rows of packed sequences: (rows, 1, D), or (rows, K, D) with as many
// key heads as queries. Row r of head k starts at row r + k T of D elements.
Tensor packed_rows(const Tensor& cache, bool by_key_head) {
  const std::int64_t key_heads = cache.size(1), tokens = cache.size(2), width = cache.size(3);
  if (by_key_head) return cache.view({-1, 1, width});
  const std::int64_t rows = (cache.size(0) - 1) * key_heads * tokens + tokens;
  return cache.as_strided({rows, key_heads, width}, {width, tokens * width, 1});
}

Tensor decode_by_flash(const Tensor& q, const Tensor& keys, const Tensor& values,
                       const step::DecodeKeys<Tensor>& seen, double scale) {
  const std::int64_t key_heads = keys.size(1), width = q.size(2);
  const bool shared = q.size(1) > key_heads;
  const Tensor queries = shared ? q.view({q.size(0) * key_heads, q.size(1) / key_heads, width}) : q;
  return std::get<0>(at::_flash_attention_forward(
                         queries, packed_rows(keys, shared), packed_rows(values, shared),
                         seen.counts, seen.starts, /*max_q=*/1, seen.limit, 0.0,
                         /*is_causal=*/false, false, scale, std::nullopt, std::nullopt, seen.used))
      .view({q.size(0), q.size(1) * width});
}

}  // namespace

Tensor AtenOps::decode_mask(const Tensor& positions, std::int64_t key_limit, std::int64_t window,
                            step::Dtype dtype) const {
  const Tensor range = iota(step::decode_mask_stride(key_limit));
  const Tensor seen = range.le(positions.unsqueeze(1));
  if (window > 0) seen.logical_and_(range.gt(plus(positions, -window).unsqueeze(1)));
  const Tensor mask = at::zeros(seen.sizes(), seen.options().dtype(to_aten(dtype)));
  const bridge::HostScope scratch;
  mask.masked_fill_(seen.logical_not_(), -std::numeric_limits<double>::infinity());
  return mask.narrow(1, 0, key_limit);
}

step::DecodeKeys<Tensor> AtenOps::decode_keys(const Tensor& positions, const Tensor& cache,
                                              std::int64_t heads, std::int64_t key_limit,
                                              const step::ScoreOptions& options) const {
  const step::Dtype dtype = to_step(cache.scalar_type());
  step::DecodeKeys<Tensor> out;
  out.limit = key_limit;
  if (!step::decodes_by_flash(options, cache.is_cuda(), dtype, cache.size(3))) {
    out.mask = decode_mask(positions, key_limit, options.window, dtype);
    return out;
  }
  const step::PackedCache packed = step::packed_cache(heads, cache.size(1), cache.size(2));
  const std::int64_t sequences = positions.size(0) * packed.of_sequence;
  const at::TensorOptions ints = at::dtype(at::kInt).device(device_);
  out.counts = at::arange(sequences + 1, ints);
  out.starts = at::mul(out.counts, packed.stride);
  out.used = at::empty({positions.size(0), packed.of_sequence}, ints);
  out.used.copy_(positions.unsqueeze(1)).add_(1);
  if (options.window > 0) {
    const Tensor hidden = at::sub(out.used, options.window).clamp_min_(0);
    out.used.sub_(hidden);
    out.starts.narrow(0, 0, sequences).add_(hidden.view({-1}));
  }
  out.used = out.used.view({-1});
  return out;
}

Tensor AtenOps::decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                 const step::DecodeKeys<Tensor>& seen,
                                 const step::ScoreOptions& options) const {
  const step::Dtype dtype = to_step(q.scalar_type());
  if (step::decodes_by_products(options, q.is_cuda(), dtype, q.size(2)))
    return step::decode_attention_by_products(*this, q, keys, values, seen.mask, options);
  if (step::decodes_by_flash(options, q.is_cuda(), dtype, q.size(2)))
    return decode_by_flash(q, keys, values, seen, options.scale);
  // The query heads of one key head read the same keys. They are passed as query positions, so that
  // keys are read once and never repeated.
  const std::int64_t batch = q.size(0);
  const std::int64_t key_heads = keys.size(1);
  const std::int64_t group = q.size(1) / key_heads;
  const std::int64_t limit = seen.limit;
  const auto below_limit = [&](const Tensor& cache) {
    return cache.narrow(0, 0, batch).narrow(2, 0, limit);
  };
  const Tensor queries = q.reshape({batch, key_heads, group, q.size(2)});
  const std::int64_t width = q.size(1) * q.size(2);
  if (q.is_cuda()) {
    const Tensor bias =
        seen.mask.as_strided({batch, key_heads, group, limit}, {seen.mask.stride(0), 0, 0, 1});
    return std::get<0>(at::_scaled_dot_product_efficient_attention(
                           queries, below_limit(keys), below_limit(values), bias,
                           /*compute_log_sumexp=*/false, 0.0, false, options.scale))
        .reshape({batch, width});
  }
  const Tensor out = at::empty({batch, width}, q.options());
  const bridge::HostScope scratch;
  return out.copy_(
      std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
                      queries, below_limit(keys), below_limit(values), 0.0, /*is_causal=*/false,
                      seen.mask.view({batch, 1, 1, limit}).expand({batch, 1, group, limit}),
                      options.scale))
          .reshape({batch, width}));
}

void AtenOps::write_prompts_(const Tensor& cache, const Tensor& slots, const Tensor& rows,
                             std::int64_t length) const {
  const Tensor by_head =
      rows.view({-1, length, rows.size(1), rows.size(2)}).transpose(1, 2);  // (B', K, T, D)
  const bridge::HostScope scratch;
  cache.narrow(2, 0, length).index_copy_(0, slots, by_head);
}

void AtenOps::put_heads_(const Tensor& table, const Tensor& places, const Tensor& heads) const {
  const bridge::HostScope scratch;
  Tensor to = table;
  to.index_put_({places}, heads);
}

void AtenOps::put_numbers_(const Tensor& to, const std::vector<std::int64_t>& values) const {
  // Only read.
  const Tensor view = at::from_blob(const_cast<std::int64_t*>(values.data()),  // NOLINT
                                    to.sizes(), at::dtype(at::kLong));
  to.copy_(staged(view, at::kLong), /*non_blocking=*/true);
}

Tensor AtenOps::page_places(const Tensor& table, const Tensor& positions,
                            std::int64_t key_heads) const {
  const Tensor out = at::empty({table.size(0), key_heads}, table.options());
  const bridge::HostScope scratch;
  const Tensor at = positions.unsqueeze(1);
  const Tensor firsts = table.gather(1, at.floor_divide(step::kPageTokens));
  return out.copy_(
      iota(key_heads, step::kPageTokens).add(firsts).add_(at.remainder(step::kPageTokens)));
}

Tensor AtenOps::page_parts(const Tensor& table, std::int64_t key_heads) const {
  const Tensor out = at::empty({table.size(0), key_heads, table.size(1)}, table.options());
  const bridge::HostScope scratch;
  out.copy_(table.unsqueeze(1).floor_divide(step::kPageTokens).add(iota(key_heads).unsqueeze(1)));
  return out.view({-1});
}

void AtenOps::write_token_(const Tensor& cache, const Tensor& positions, const Tensor& rows) const {
  const Tensor where =
      positions.view({-1, 1, 1, 1}).expand({rows.size(0), rows.size(1), 1, rows.size(2)});
  const bridge::HostScope scratch;
  cache.narrow(0, 0, rows.size(0)).scatter_(2, where, rows.unsqueeze(2));
}

}  // namespace neap::ops
