#include "rlhf/model_update.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "base/format.h"
#include "rlhf/update_phases.h"
#include "step/phases.h"

namespace neap::rlhf {

// The optimizer of step::update_phase: one step a mini-batch, at the schedule's learning rate.
class ModelUpdate::Optimizer {
 public:
  Optimizer(ModelUpdate& update, UpdatePhases& phases,
            const std::function<void(std::int64_t)>& begin)
      : update_(update), phases_(phases), begin_(begin) {}

  void begin(std::int64_t, std::int64_t first) {
    if (begin_) begin_(first);
    phases_.begin_backward();
    update_.worker_.optimizer().zero_grads();
  }
  void finish(std::int64_t update) {
    const std::int64_t all = update_.context_.total_steps * update_.shape_.updates();
    const spec::ModelSource& source = update_.source_;
    update_.lr_ = train::learning_rate(*source.optimizer, update_.first_update_ + update, all);
    phases_.begin_update();
    update_.grad_norms_ += update_.worker_.update(update_.lr_, source.grad_clip);
  }

 private:
  ModelUpdate& update_;
  UpdatePhases& phases_;
  const std::function<void(std::int64_t)>& begin_;
};

ModelUpdate::ModelUpdate(Context& context, train::ModelWorker& worker, spec::Body body,
                         std::int64_t step)
    : context_(context),
      worker_(worker),
      body_(body),
      source_(*context.recipe.find(context.recipe.find(body)->model)),
      shape_(spec::update_shape(context.job, body)),
      first_update_(step * shape_.updates()) {
  worker.model().check_trainable();
}

train::ArrangedBatch ModelUpdate::arrange(train::Sequences batch) const {
  const spec::Phase& phase = *context_.recipe.find(body_);
  return train::arrange(std::move(batch), spec::batching_of(context_.job, phase),
                        train::Use::kTraining, shape_.rows / shape_.mini_batch);
}

void ModelUpdate::run(const train::Sequences& arranged, const Micro& micro,
                      const std::function<void(std::int64_t)>& begin) {
  const at::NoGradGuard no_grad;
  const spec::Checkpointing& keep = context_.runtime.plan().checkpointing(worker_.spec().role);
  UpdatePhases phases(context_.runtime, context_.recipe, body_);
  Optimizer optimizer(*this, phases, begin);
  step::update_phase(worker_.model().ops(), shape_, step::update_cuts(shape_, arranged), optimizer,
                     [&](std::int64_t first, std::int64_t count) { micro(first, count, keep); });
  phases.close();
}

void ModelUpdate::add_mean(const std::string& name, double value, double weight) {
  auto& [sum, count] = means_[name];
  sum += value * weight;
  count += weight;
}

void ModelUpdate::put(Metrics& metrics, const std::string& prefix) const {
  std::vector<double> flat;
  for (const auto& [name, value] : shares_) flat.push_back(value);
  for (const auto& [name, entry] : means_) {
    flat.push_back(entry.first);
    flat.push_back(entry.second);
  }
  context_.ranks.sum(flat);
  const auto updates = static_cast<double>(shape_.updates());
  std::size_t i = 0;
  for (const auto& [name, value] : shares_) metrics[name] = flat[i++] / updates;
  for (const auto& [name, entry] : means_) {
    metrics[name] = flat[i + 1] > 0 ? flat[i] / flat[i + 1] : 0;
    i += 2;
  }
  metrics[prefix + "/grad_norm"] = grad_norms_ / updates;
  metrics[prefix + "/lr"] = lr_;
}

}  // namespace neap::rlhf
