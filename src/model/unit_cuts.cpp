#include "model/unit_cuts.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "model/transformer.h"

namespace neap::model {

using at::Tensor;

UnitCuts::UnitCuts(spec::Architecture architecture, std::int64_t ranks,
                   std::vector<spec::FlatUnit> whole, std::vector<spec::FlatUnit> part)
    : architecture_(std::move(architecture)),
      ranks_(ranks),
      whole_(std::move(whole)),
      part_(std::move(part)) {}

template <class Visit>
void UnitCuts::for_each_range(std::size_t unit, std::int64_t rank, const Tensor& whole,
                              const Tensor& part, const Visit& visit) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < part_[unit].parameters.size(); ++i) {
    const spec::Parameter& p = part_[unit].parameters[i];
    const Tensor all = parameter_view(whole, whole_[unit].parameters[i]);
    const Tensor own = parameter_view(part, p);
    const spec::ParameterCut cut = spec::cut_of(architecture_, {ranks_, rank}, p);
    if (!cut.cuts()) {
      visit(all, own);
      continue;
    }
    std::int64_t at = 0;
    for (const spec::ParameterCut::Range& range : cut.ranges) {
      visit(all.narrow(cut.dimension, range.first, range.count),
            own.narrow(cut.dimension, at, range.count));
      at += range.count;
    }
  }
}

void UnitCuts::take(std::size_t unit, std::int64_t rank, const Tensor& whole,
                    const Tensor& part) const {
  for_each_range(unit, rank, whole, part, [](const Tensor& from, Tensor to) { to.copy_(from); });
}
void UnitCuts::put(std::size_t unit, std::int64_t rank, const Tensor& part,
                   const Tensor& whole) const {
  for_each_range(unit, rank, whole, part, [](Tensor to, const Tensor& from) { to.copy_(from); });
}

}  // namespace neap::model
