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

void StageUnits::take_own(std::size_t unit, const at::Tensor& to) {
  if (units_[unit].stage == stages_.rank()) units_[unit].take(to);
}

void StageUnits::gather(const std::vector<at::Tensor>& whole) {
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < units_.size(); ++u) take_own(u, whole[u]);
  for (std::size_t u = 0; u < units_.size(); ++u) stages_.broadcast(whole[u], units_[u].stage);
}

void StageUnits::gather_each(const TakeUnit& take) {
  const bridge::NoAutograd no_autograd;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const at::Tensor to = place_.narrow(0, 0, layout_[u].elements);
    take_own(u, to);
    stages_.broadcast(to, units_[u].stage);
    take(u, to);
  }
}

}  // namespace neap::train
