#include "train/generation_weights.h"

namespace neap::train {

void GenerationWeights::gather() {
  for (const Units& units : units_) {
    if (!units.parts) {
      units.from->gather(units.to);
      continue;
    }
    units.from->gather_each([&](std::size_t unit, const at::Tensor& trained) {
      units.parts->run(unit, trained, units.to[unit]);
    });
  }
}

void ResidentUnits::gather(const std::vector<at::Tensor>& whole) {
  for (std::size_t u = 0; u < units_.size(); ++u) at::Tensor(whole[u]).copy_(units_[u]);
}

void ResidentUnits::gather_each(const TakeUnit& take) {
  for (std::size_t u = 0; u < units_.size(); ++u) take(u, units_[u]);
}

}  // namespace neap::train
