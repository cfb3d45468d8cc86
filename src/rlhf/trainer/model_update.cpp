#include "rlhf/trainer/model_update.h"

#include <ATen/ATen.h>

#include <sstream>
#include <utility>
#include <vector>

#include "bridge/runtime.h"
#include "rlhf/trainer/live_backend.h"

namespace neap::rlhf {

ModelUpdate::ModelUpdate(Context& context, train::ModelWorker& worker, spec::Body body,
                         std::int64_t step)
    : context_(context),
      worker_(worker),
      body_(body),
      source_(*context.recipe.find(context.recipe.find(body)->model)),
      shape_(spec::update_shape(context.job, body)),
      first_update_(step * shape_.updates()) {}

train::ArrangedBatch ModelUpdate::arrange(train::Sequences batch) const {
  const spec::Phase& phase = *context_.recipe.find(body_);
  return train::arrange(std::move(batch), spec::batching_of(context_.job, phase),
                        train::Use::kTraining, shape_.rows / shape_.mini_batch,
                        context_.context_shard(source_.id));
}

void ModelUpdate::run(const step::Experience<at::Tensor>& arranged, const Scale& scale) {
  LiveTraining training;
  training.optimizer = &worker_.optimizer();
  training.checkpointing = context_.runtime.plan().checkpointing(source_.id);
  training.max_norm = source_.grad_clip;
  training.updates = {0, shape_.updates()};
  training.learning_rate = [this](std::int64_t update) {
    return train::learning_rate(*source_.optimizer, first_update_ + update,
                                context_.total_steps * shape_.updates());
  };
  training.scale = scale;
  training.take_numbers = [this](const step::LossNumbers& numbers) { add(numbers); };
  training.for_each_part = [this](const auto& visit) { worker_.for_each_part(visit); };
  training.gather_weights = [this] { worker_.gather_weights(); };
  LiveBackend backend(context_.job, worker_.model(), arranged, training, context_.progress);
  const auto run = [&](spec::TrainPart part) {
    const spec::Phase& phase = *context_.recipe.find(body_, part);
    run_phase(context_, phase.id, [&] { backend.run(phase); });
  };
  if (context_.recipe.find(body_, spec::TrainPart::kAll) != nullptr) {
    run(spec::TrainPart::kAll);
  } else {
    for (std::int64_t update = 0; update < shape_.updates(); ++update) {
      backend.set_updates({update, 1});
      run(spec::TrainPart::kBackward);
      run(spec::TrainPart::kUpdate);
    }
  }
  grad_norm_ = backend.gradient_norm();
  lr_ = backend.learning_rate();
  skipped_ = backend.skipped_updates();
}

void ModelUpdate::add(const step::LossNumbers& numbers) {
  for (const step::LossNumber& number : numbers) {
    if (!number.weight) {
      sums_.shares[number.name] += number.value;
      continue;
    }
    auto& [sum, weight] = sums_.means[number.name];
    sum += number.value * *number.weight;
    weight += *number.weight;
  }
}

ModelUpdate::Sums ModelUpdate::shared() const {
  if (context_.model_groups.of(source_.id).along(spec::Axis::kPipe).alone()) return sums_;
  const bridge::HostScope host;
  // One name per line. Each has a value and a weight; shares have no weight.
  std::string names;
  std::vector<double> values;
  for (const auto& [name, value] : sums_.shares) {
    names += name + "\n";
    values.insert(values.end(), {value, -1});
  }
  for (const auto& [name, entry] : sums_.means) {
    names += name + "\n";
    values.insert(values.end(), {entry.first, entry.second});
  }
  const auto tensor = [](auto& of, at::ScalarType type) {
    return of.empty() ? at::Tensor()
                      : at::from_blob(of.data(), {std::ssize(of)}, at::dtype(type)).clone();
  };
  const at::Tensor lines = context_.from_last_stage(source_.id, tensor(names, at::kByte));
  const at::Tensor numbers = context_.from_last_stage(source_.id, tensor(values, at::kDouble));
  if (!lines.defined()) return {};
  Sums out;
  std::istringstream in(
      std::string(static_cast<const char*>(lines.const_data_ptr()), lines.nbytes()));
  const auto* next = numbers.const_data_ptr<double>();
  for (std::string name; std::getline(in, name); next += 2) {
    if (next[1] < 0) {
      out.shares[name] = next[0];
    } else {
      out.means[name] = {next[0], next[1]};
    }
  }
  return out;
}

void ModelUpdate::put(Metrics& metrics, const std::string& prefix) const {
  const auto [shares, means] = shared();
  std::vector<double> flat;
  flat.reserve(shares.size() + 2 * means.size());
  for (const auto& [name, value] : shares) flat.push_back(value);
  for (const auto& [name, entry] : means) {
    flat.push_back(entry.first);
    flat.push_back(entry.second);
  }
  context_.model_groups.of(source_.id).data().sum(flat);
  const auto updates = static_cast<double>(shape_.updates());
  std::size_t i = 0;
  for (const auto& [name, value] : shares) metrics[name] = flat[i++] / updates;
  for (const auto& [name, entry] : means) {
    metrics[name] = flat[i + 1] > 0 ? flat[i] / flat[i + 1] : 0;
    i += 2;
  }
  metrics[prefix + "/grad_norm"] = grad_norm_;
  metrics[prefix + "/lr"] = lr_;
  if (skipped_ == 0) return;
  metrics[prefix + kSkippedUpdates] = static_cast<double>(skipped_);
  metrics[prefix + kSkippedInARow] = static_cast<double>(worker_.optimizer().refused_in_a_row());
}

}  // namespace neap::rlhf
