#include "train/stage_units.h"

#include <utility>

#include "bridge/no_autograd.h"

namespace neap::train {

StageUnits::StageUnits(parallel::Communicator& stages, std::vector<spec::FlatUnit> layout,
                       std::vector<Unit> units, at::Tensor place)
    : stages_(stages),
      layout_(std::move(layout)),
      units_(std::move(units)),
      place_(std::move(place)) {}

void StageUnits::bring(std::size_t unit, const at::Tensor& to) {
  const Unit& from = units_[unit];
  if (from.stage == stages_.rank()) from.take(to);
  stages_.broadcast(to, from.stage);
}

void StageUnits::gather(const std::vector<at::Tensor>& whole) {
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < units_.size(); ++u) bring(u, whole[u]);
}

void StageUnits::gather_each(const TakeUnit& take) {
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const at::Tensor to = place_.narrow(0, 0, layout_[u].elements);
    bring(u, to);
    take(u, to);
  }
}

}  // namespace neap::train
