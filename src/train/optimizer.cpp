#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/format.h"
#include "base/status.h"

namespace neap::train {

double learning_rate(const spec::OptimizerConfig& config, std::int64_t step, std::int64_t total) {
  const auto warmup = static_cast<double>(config.lr_warmup_steps);
  const auto at = static_cast<double>(step);
  if (at < warmup) return config.lr * (at + 1) / warmup;
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  const double progress = std::clamp((at - warmup) / span, 0.0, 1.0);
  if (config.lr_schedule == "constant") return config.lr;
  if (config.lr_schedule == "linear") return config.lr * (1 - progress);
  if (config.lr_schedule == "cosine") {
    return config.lr * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  throw Error(ErrorCode::kInvalidArgument,
              format("Learning rate schedule \"{}\" is unknown; it can be constant, linear, cosine",
                     config.lr_schedule));
}

AdamW::AdamW(const spec::OptimizerConfig& config, std::vector<OptimizerUnit> units,
             parallel::Communicator& ranks)
    : config_(config), ranks_(ranks), units_(std::move(units)) {}

void AdamW::zero_grads() {
  for (OptimizerUnit& unit : units_) unit.grads.zero_();
}

double AdamW::reduce_grads(double max_norm) {
  for (const OptimizerUnit& unit : units_) ranks_.all_reduce(unit.grads);
  // Each norm goes to the host by itself: a sum on the device in another order than the next run's
  // would break bit-for-bit resumption.
  double squares = 0;
  for (const OptimizerUnit& unit : units_) {
    const double norm =
        at::linalg_vector_norm(unit.grads, 2, c10::nullopt, false, at::kFloat).item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) {
    throw Error(ErrorCode::kInternal,
                format("The gradient's norm is {} at optimizer step {}; the weights are as before "
                       "it. A lower learning rate, or float32, helps",
                       norm, steps_));
  }
  if (max_norm > 0 && norm > max_norm) {
    const double scale = max_norm / (norm + 1e-6);
    for (OptimizerUnit& unit : units_) unit.grads.mul_(scale);
  }
  return norm;
}

void AdamW::step(double lr) {
  if (units_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto update = [&](std::vector<at::Tensor> targets, std::vector<at::Tensor> grads,
                          std::vector<at::Tensor> averages, std::vector<at::Tensor> squares) {
    std::vector<at::Tensor> counts;
    for (const at::Tensor& target : targets) {
      counts.push_back(at::full({}, static_cast<double>(steps_),
                                at::TensorOptions().dtype(at::kFloat).device(target.device())));
    }
    at::_fused_adamw_(targets, grads, averages, squares, {}, counts, lr, config_.beta1,
                      config_.beta2, config_.weight_decay, config_.eps, false, false);
  };
  ++steps_;
  std::vector<at::Tensor> targets, grads, averages, squares;
  for (OptimizerUnit& unit : units_) {
    const at::Tensor& target = unit.master.defined() ? unit.master : unit.weights;
    if (unit.grads.scalar_type() != target.scalar_type()) {
      // The kernel wants one dtype: widen one unit's gradient at a time.
      update({target}, {unit.grads.to(target.scalar_type())}, {unit.exp_avg}, {unit.exp_avg_sq});
      continue;
    }
    targets.push_back(target);
    grads.push_back(unit.grads);
    averages.push_back(unit.exp_avg);
    squares.push_back(unit.exp_avg_sq);
  }
  if (!targets.empty()) update(targets, grads, averages, squares);
  for (OptimizerUnit& unit : units_) {
    if (unit.master.defined()) unit.weights.copy_(unit.master);
  }
}

}  // namespace neap::train
