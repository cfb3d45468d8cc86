#include "rlhf/live_backend.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/status.h"
#include "bridge/no_autograd.h"
#include "bridge/runtime.h"

namespace neap::rlhf {

LiveBackend::LiveBackend(const spec::Job& job, model::Transformer& model,
                         const step::Experience<at::Tensor>& experience, LiveTraining training)
    : job_(job), model_(model), experience_(experience), training_(std::move(training)) {}

void LiveBackend::run(const spec::Phase& phase) {
  const bridge::NoAutograd no_autograd;
  step::run_phase(*this, phase);
}

at::Tensor LiveBackend::join(const std::vector<at::Tensor>& parts) {
  const bridge::HostScope host;
  return parts.empty() ? at::Tensor() : at::cat(parts);
}

double LiveBackend::gradient_norm() const {
  return steps_ == 0 ? 0 : norms_ / static_cast<double>(steps_);
}

void LiveBackend::take_log_probs(const step::LogProbs<at::Tensor>& values) {
  log_probs_.push_back(values.log_probs);
  if (values.entropy.defined()) entropies_.push_back(values.entropy);
  if (values.right.defined()) right_.push_back(values.right);
}

void LiveBackend::generate(const spec::Phase&) {
  throw Error(ErrorCode::kInternal, "a generation is run by rollout::generate");
}

step::LossScale LiveBackend::scale(std::int64_t first) {
  const bridge::HostScope host;
  return training_.scale(first);
}

void LiveBackend::take_numbers(step::LossNumbers numbers) {
  if (training_.take_numbers) training_.take_numbers(std::move(numbers));
}

void LiveBackend::clip_gradients(double norm) {
  training_.optimizer->clip_gradients(norm, training_.max_norm);
  norms_ += norm;
  ++steps_;
}

step::Update LiveBackend::begin_step(std::int64_t update) {
  learning_rate_ = training_.learning_rate(update);
  return training_.optimizer->begin_step(learning_rate_);
}

}  // namespace neap::rlhf
