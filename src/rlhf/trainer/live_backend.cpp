#include "rlhf/trainer/live_backend.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "bridge/no_autograd.h"
#include "bridge/runtime.h"

namespace neap::rlhf {

LiveBackend::LiveBackend(const spec::Job& job, ops::Transformer& model,
                         const step::Experience<at::Tensor>& experience, LiveTraining training,
                         Progress* progress)
    : job_(job),
      model_(model),
      experience_(&experience),
      training_(std::move(training)),
      progress_(progress) {}

LiveBackend::LiveBackend(const spec::Job& job, ops::Transformer& model,
                         const LiveGeneration& generation)
    : job_(job), model_(model), generation_(generation) {}

void LiveBackend::run(const spec::Phase& phase) {
  const bridge::NoAutograd no_autograd;
  if (progress_ != nullptr) begin_progress(phase);
  step::run_phase(*this, phase);
}

// Progress counts micro-batches of all updates of the step; those of earlier mini-batches are
// already done.
void LiveBackend::begin_progress(const spec::Phase& phase) {
  const std::string name(to_string(phase.id));
  const auto size = [](auto n) { return static_cast<std::uint64_t>(n); };
  if (!phase.trains()) {
    const std::int64_t rows = spec::batching_of(job_, phase).rows;
    const auto cuts = step::inference_cuts(experience_->sequences, rows);
    return progress_->begin_part(name, 0, cuts.size(), "micro-batches");
  }
  const spec::UpdateShape shape = spec::update_shape(job_, phase.body);
  const std::int64_t first = training_.updates.first;
  if (phase.part == spec::TrainPart::kUpdate)
    return progress_->begin_part(name, size(first), size(shape.updates()), "updates");
  const step::Cuts cuts = step::update_cuts(shape, experience_->sequences);
  std::uint64_t done = 0, total = 0;
  for (std::int64_t update = 0; update < shape.updates(); ++update) {
    if (update == first) done = total;
    total += cuts[size(update) % cuts.size()].size();
  }
  progress_->begin_part(name, done, total, "micro-batches");
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
  end_micro_batch();
}

void LiveBackend::take_scores(const at::Tensor& scores) {
  scores_.push_back(scores);
  end_micro_batch();
}

step::LossScale LiveBackend::scale(std::int64_t first) {
  const bridge::HostScope host;
  return training_.scale(first);
}

void LiveBackend::take_numbers(step::KeptNumbers<at::Tensor> numbers) {
  numbers_.push_back(std::move(numbers));
  end_micro_batch();
}

void LiveBackend::read_numbers() {
  ops().wait_for_device();
  for (const step::KeptNumbers<at::Tensor>& numbers : std::exchange(numbers_, {}))
    if (training_.take_numbers) training_.take_numbers(numbers.read(ops()));
}

std::optional<step::Update> LiveBackend::begin_step(std::int64_t update, double norm) {
  norms_ += norm;
  ++steps_;
  learning_rate_ = training_.learning_rate(update);
  train::Optimizer& optimizer = *training_.optimizer;
  if (!optimizer.accepts(norm)) {
    ++skipped_;
    return std::nullopt;
  }
  return optimizer.begin_step(learning_rate_, optimizer.clip_scale(norm, training_.max_norm));
}

}  // namespace neap::rlhf
