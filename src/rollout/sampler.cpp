#include "rollout/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace neap::rollout {
namespace {

// Sums of each row's first elements. On CUDA libtorch's kernel for one row adds in an order that
// differs from run to run; the one for several rows does not.
at::Tensor running_sum(const at::Tensor& rows) {
  if (!rows.is_cuda() || rows.size(0) > 1) return rows.cumsum(-1);
  return rows.expand({2, rows.size(-1)}).cumsum(-1).narrow(0, 0, 1);
}
at::Tensor running_sum_in_place(at::Tensor rows) {
  return !rows.is_cuda() || rows.size(0) > 1 ? rows.cumsum_(-1) : running_sum(rows);
}

}  // namespace

at::Tensor sample(at::Tensor logits, const SamplingOptions& options, const at::Tensor& uniforms) {
  if (options.temperature <= 0) return logits.argmax(-1);
  const std::int64_t vocabulary = logits.size(-1);
  const bool by_count = options.top_k > 0 && options.top_k < vocabulary;
  const bool by_mass = options.top_p < 1;
  logits.div_(options.temperature);
  at::Tensor order;  // (B, V) token at each rank, when ranks matter
  if (by_count || by_mass) {
    std::tie(logits, order) = logits.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  }
  at::Tensor mass = at::softmax(logits, -1);
  logits.reset();
  if (by_count) mass.narrow(-1, options.top_k, vocabulary - options.top_k).zero_();
  if (by_mass) {
    // A token stays while what is likelier than it has not reached top_p; the likeliest always stays.
    const double whole = by_count ? 1.0 : 0.0;
    if (whole > 0) mass.div_(mass.sum(-1, true));
    const at::Tensor before = running_sum(mass).sub_(mass);
    at::Tensor drop = before.ge(options.top_p);
    drop.select(-1, 0).fill_(false);
    mass.masked_fill_(drop, 0);
  }
  mass = running_sum_in_place(std::move(mass));
  const at::Tensor target = uniforms.unsqueeze(-1) * mass.narrow(-1, vocabulary - 1, 1);
  // The first rank whose mass exceeds the target; its own share is positive, for the target is below
  // the sum.
  at::Tensor rank = at::searchsorted(mass, target, /*out_int32=*/false, /*right=*/true);
  rank.clamp_max_(vocabulary - 1);
  return (order.defined() ? order.gather(-1, rank) : rank).squeeze(-1);
}

}  // namespace neap::rollout
