#include "train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/format.h"
#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/torch_dtypes.h"
#include "ops/aten_ops.h"
#include "step/units/gradient_norm.h"

namespace neap::train {

double learning_rate(const spec::OptimizerConfig& config, std::int64_t step, std::int64_t total) {
  const double warmup = config.lr_warmup_steps > 0
                            ? static_cast<double>(config.lr_warmup_steps)
                            : std::ceil(config.lr_warmup_steps_ratio * static_cast<double>(total));
  const auto at = static_cast<double>(step);
  if (at < warmup) return config.lr * (at + 1) / warmup;
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  const double progress = std::clamp((at - warmup) / span, 0.0, 1.0);
  if (config.lr_schedule == "constant") return config.lr;
  const double least = config.min_lr_ratio;
  const auto from_one = [&](double share) { return config.lr * (least + (1 - least) * share); };
  if (config.lr_schedule == "linear") return from_one(1 - progress);
  if (config.lr_schedule == "cosine")
    return from_one(0.5 * (1 + std::cos(std::numbers::pi * progress)));
  throw Error(ErrorCode::kInvalidArgument,
              format("Learning rate schedule \"{}\" is unknown; it can be constant, linear, cosine",
                     config.lr_schedule));
}

at::Tensor state_view(const at::Tensor& state, const spec::StateTensor& tensor) {
  const auto offset = static_cast<std::int64_t>(tensor.offset.count());
  const auto bytes = static_cast<std::int64_t>(tensor.bytes().count());
  return state.narrow(0, offset, bytes).view(bridge::to_aten(tensor.dtype));
}

Optimizer::Optimizer(const spec::OptimizerConfig& config, const spec::OptimizerSpec& spec,
                     std::uint64_t seed, std::vector<OptimizerUnit> units,
                     parallel::Communicator& ranks, std::optional<OptimizerSlice> slice,
                     std::int64_t reduced_together)
    : config_(config),
      spec_(spec),
      seed_(seed),
      ranks_(ranks),
      units_(std::move(units)),
      slice_(std::move(slice)) {
  const bool leave = std::any_of(units_.begin(), units_.end(),
                                 [](const OptimizerUnit& unit) { return unit.on_host; });
  if ((ranks_.alone() && !leave) || slices_gradients()) return;
  reduction_.emplace(
      units_, pieces(), element_bytes(spec_.gradients),
      [this](const std::vector<std::size_t>& bucket) { begin_sums(bucket); },
      [this](std::size_t unit, const at::Tensor& gradients) { sum_leaving(unit, gradients); },
      reduced_together);
}

parallel::Communicator::PartialSum Optimizer::sum_of(std::size_t unit,
                                                     const at::Tensor& gradients) const {
  if (!slice_) return {gradients, {}};
  return {gradients, slice_->placement.counts(unit)};
}

void Optimizer::sum_leaving(std::size_t unit, const at::Tensor& gradients) {
  ranks_.wait_for(ranks_.begin_sums({sum_of(unit, gradients)}));
  if (!slice_ || slice_->replicas == nullptr) return;
  const step::GradientSink<at::Tensor>::Leaving own =
      reduction_->leaving(step::key_of(units_[unit].unit));
  const at::Tensor mine = gradients.narrow(0, own.first, own.count);
  slice_->replicas->wait_for(slice_->replicas->begin_sums({{mine, {}}}));
}

void Optimizer::begin_sums(const std::vector<std::size_t>& units) {
  const bridge::NoAutograd no_autograd;
  std::vector<parallel::Communicator::PartialSum> sums;
  sums.reserve(units.size());
  for (const std::size_t u : units) sums.push_back(sum_of(u, units_[u].gradients));
  ranks_.begin_sums(sums);
}

void Optimizer::reduce_gradients() {
  if (reduction_) {
    reduction_->finish();
    ranks_.join();
  }
  sum_over_replicas();
}

void Optimizer::sum_over_replicas() {
  if (!slice_ || slice_->replicas == nullptr) return;
  const bridge::NoAutograd no_autograd;
  std::vector<parallel::Communicator::PartialSum> sums;
  for (const OptimizerUnit& piece : slice_->pieces)
    if (!piece.on_host) sums.push_back({piece.gradients, {}});
  if (sums.empty()) return;
  slice_->replicas->begin_sums(sums);
  slice_->replicas->join();
}

std::int64_t Optimizer::further_groups(std::int64_t own) const {
  return slices_gradients() ? ranks_.more_elsewhere(own) : 0;
}

// Each value is set on one rank only, so the sums are exact.
std::vector<double> Optimizer::all_norms(std::vector<double> own) const {
  if (!slice_) return own;
  const auto ranges = [](const OptimizerUnit& unit, std::int64_t from, std::int64_t elements) {
    return step::norm_ranges(unit.unit, from, elements).size();
  };
  std::map<std::int64_t, std::size_t> first;  // by the unit's number
  std::size_t count_of_all = 0;
  for (const OptimizerUnit& unit : units_) {
    first[unit.index] = count_of_all;
    count_of_all += ranges(unit, 0, unit.unit.elements);
  }
  std::vector<double> all(count_of_all);
  auto next = own.begin();
  for (const OptimizerUnit& piece : slice_->pieces) {
    const auto count =
        static_cast<std::ptrdiff_t>(ranges(piece, piece.first, piece.weights.size(0)));
    const std::size_t at = first.at(piece.index) + ranges(piece, 0, piece.first);
    std::copy(next, next + count, all.begin() + static_cast<std::ptrdiff_t>(at));
    next += count;
  }
  ranks_.sum(all);
  return all;
}

void Optimizer::gather_weights() {
  if (!slice_ || slice_->weights) return;
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (!units_[u].on_host) ranks_.all_gather(units_[u].weights, slice_->placement.counts(u));
}

bool Optimizer::accepts(double norm) {
  refused_ = std::isfinite(norm) ? 0 : refused_ + 1;
  return refused_ == 0;
}

step::Update Optimizer::begin_step(double lr, double gradient_scale) {
  step::Update update{spec_, config_, lr, ++steps_, seed_};
  update.gradient_scale = gradient_scale;
  return update;
}

}  // namespace neap::train
