// Drawing tokens by Neap's kernels (src/kernels/cuda/sampler.cu), on the current stream of the GPU.
#include "kernels/sampler_sizes.h"
#include "ops/aten_ops.h"
#include "ops/own_launch.h"

namespace neap::ops {

using at::Tensor;
using namespace own;

namespace {

using kernels::sampler::kChoosers;
using kernels::sampler::kReaders;

// The parts of the scratch (rows, parts, width), in int64: a largest logit each, a sum each, then the counts.
struct DrawScratch {
  explicit DrawScratch(const Tensor& scratch)
      : best(scratch.mutable_data_ptr<std::int64_t>()),
        sums(best + scratch.size(0) * scratch.size(1)),
        counts(sums + scratch.size(0) * scratch.size(1)) {}
  std::int64_t *best, *sums, *counts;
};

}  // namespace

void AtenOps::draw_into(const Tensor& tokens, const Tensor& log_probs, const Tensor& scratch,
                        const Tensor& logits, const Tensor& uniforms,
                        const step::TokenDraw& by) const {
  check(logits, logits, "drawing tokens");
  const std::int64_t rows = logits.size(0);
  const std::int64_t columns = logits.size(1);
  if (logits.numel() == 0) return;
  const std::int64_t width = vector_width({logits}, {columns});
  const auto kernel = [&](const char* what) { return kernel_name(what, logits, width); };
  const std::int64_t parts = scratch.size(1);
  const DrawScratch at(scratch);
  const auto cap = static_cast<float>(by.shape.softcap);
  const auto divisor = static_cast<float>(by.shape.divisor);
  std::int64_t* const sums = by.largest && !log_probs.defined() ? nullptr : at.sums;
  const kernels::Grid reading{rows, parts, kReaders};
  launch(logits, "sampler", kernel("parts"), reading, logits.const_data_ptr(), logits.stride(0),
         at.best, sums, columns, cap, divisor);
  const kernels::Grid choosing{rows, 1, kChoosers};
  const auto count = static_cast<int>(parts);
  const float* const draws = by.largest ? nullptr : uniforms.const_data_ptr<float>();
  std::int64_t* const chosen = tokens.mutable_data_ptr<std::int64_t>();
  if (!by.in_order()) {
    launch(logits, "sampler", kernel("draw"), choosing, logits.const_data_ptr(), logits.stride(0),
           at.best, sums, draws, chosen, numbers(log_probs), columns, count, cap, divisor);
    return;
  }
  struct {  // Kept of sampler.cu
    double top_p;
    unsigned top_k;
    float min_p;
  } const kept{by.top_p, static_cast<unsigned>(by.top_k), static_cast<float>(by.min_p)};
  launch(logits, "sampler", kernel("windows"), reading, logits.const_data_ptr(), logits.stride(0),
         at.best, at.counts, columns);
  launch(logits, "sampler", kernel("draw_in_order"), choosing, logits.const_data_ptr(),
         logits.stride(0), at.best, at.sums, at.counts, draws, chosen, numbers(log_probs), columns,
         count, cap, divisor, kept);
}

}  // namespace neap::ops
