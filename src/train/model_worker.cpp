#include "train/model_worker.h"

#include <utility>

#include "bridge/torch_dtypes.h"

namespace neap::train {

ModelWorker::ModelWorker(bridge::Runtime& runtime, const parallel::Groups& groups, WorkerSpec spec)
    : rank_{runtime, groups, std::move(spec)} {
  base_units_ = make_units(rank_, ModelPart::Of::kBase);
  if (rank_.spec.lora.rank > 0) adapter_units_ = make_units(rank_, ModelPart::Of::kAdapters);
  if (rank_.spec.trained)
    optimizer_.emplace(rank_, adapter_units_ ? *adapter_units_ : *base_units_);
  make_models();
  files_.emplace(rank_, *base_units_, adapter_units_.get(), optimizer_ ? &*optimizer_ : nullptr);
}

void ModelWorker::make_models() {
  const spec::JobModel& model = rank_.spec;
  const std::vector<at::Tensor> places = base_units_->places();
  ops::FlatTensors base{places, {}};
  std::optional<ops::Lora> lora;
  if (adapter_units_) lora = ops::Lora{model.lora, {adapter_units_->values(), {}}};
  at::ScalarType gradients = rank_.runtime.compute_dtype();
  if (optimizer_) {
    (lora ? lora->adapters : base).grads = optimizer_->gradients();
    gradients = bridge::to_aten(optimizer_->placement().optimizer().gradients);
  }
  const std::optional<ops::StreamedBase> streamed = base_units_->streamed(gradients);
  if (model.generates && ((streamed && streamed->slots != nullptr) || model.generation_part))
    generator_.emplace(rank_, *base_units_, adapter_units_.get(), lora);
  const bridge::KernelChoice kernels = rank_.runtime.context().kernels();
  const ops::Peers peers{&rank_.groups.tensor(), &rank_.groups.context()};
  if (lora)
    base_.emplace(model.shape, model.head, ops::FlatTensors{places, {}}, std::nullopt, streamed,
                  kernels, peers);
  model_.emplace(model.shape, model.head, std::move(base), std::move(lora), streamed, kernels,
                 peers);
  if (optimizer_) optimizer_->receive_from(*model_);
  if (model.shape.pipeline.stages == 1) return;
  links_.emplace(rank_.groups.along(spec::Axis::kPipe));
  model_->ops().set_stages(&*links_);
  if (base_) base_->ops().set_stages(&*links_);
}

}  // namespace neap::train
