#include "train/model_part.h"

#include <ATen/ATen.h>

#include <utility>

#include "bridge/runtime.h"
#include "spec/model/pipeline.h"

namespace neap::train {

ModelPart::ModelPart(const spec::JobModel& model, Of units)
    : shape_(model.shape),
      head_(model.head),
      lora_(model.lora),
      units_(units),
      layout_(layout_of(model.shape)),
      whole_(layout_of(model.whole)),
      numbers_(spec::numbers_in(whole_, layout_)) {
  if (shard().ranks > 1)
    cuts_.emplace(model.whole, shard().ranks, spec::units_of(whole_, numbers_), layout_);
  for (const spec::FlatUnit& unit : whole_)
    stages_.push_back(has_stages() ? spec::stage_of_unit(spec::undivided(shape_), head_,
                                                         shape_.pipeline.stages, unit)
                                   : 0);
}

std::vector<spec::FlatUnit> ModelPart::layout_of(const spec::Architecture& shape) const {
  return adapters() ? spec::lora_layout(shape, head_, lora_) : spec::flat_layout(shape, head_);
}

UnitFill ModelPart::of_part(UnitFill whole) const {
  if (!cut() && !has_stages()) return whole;
  return [this, whole = std::move(whole)](std::size_t first, const std::vector<at::Tensor>& flat) {
    const bridge::HostScope host;  // no phase plans memory for whole units
    for (std::size_t i = 0; i < flat.size(); ++i) {
      const std::size_t u = first + i;
      if (!cut()) {
        whole(numbers_[u], {flat[i]});
        continue;
      }
      const at::Tensor unit =
          at::zeros({cuts_->whole()[u].elements}, at::dtype(flat[i].scalar_type()));
      whole(numbers_[u], {unit});
      cuts_->take(u, shard().rank, unit, flat[i]);
    }
  };
}

std::vector<weights::PartRun> ModelPart::runs(std::size_t unit, std::size_t parameter) const {
  if (cut()) return cuts_->runs(unit, parameter, shard().rank);
  const spec::Parameter& p = layout_[unit].parameters[parameter];
  return {{p.offset, 0, p.elements()}};
}

std::vector<weights::PartRun> ModelPart::runs(const spec::WholeState& state) const {
  if (cut()) return cuts_->runs(state, shard().rank);
  return {{0, 0, state.elements}};
}

}  // namespace neap::train
