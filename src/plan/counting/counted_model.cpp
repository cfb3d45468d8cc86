#include "plan/counting/counted_model.h"

#include <optional>
#include <vector>

#include "step/operations/bind.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::Dtype;
using Weights = step::Weights<CountedTensor>;

// `gradients` is their type; nullopt if the units are frozen.
void bind_units(Weights& w, const std::vector<spec::FlatUnit>& units, Dtype dtype,
                std::optional<Dtype> gradients) {
  const auto like = [](const std::vector<std::int64_t>& shape, Dtype type) {
    switch (shape.size()) {
      case 1:
        return CountedTensor::outside({shape[0]}, type);
      case 2:
        return CountedTensor::outside({shape[0], shape[1]}, type);
      default:
        return CountedTensor::outside({shape.at(0), shape.at(1), shape.at(2)}, type);
    }
  };
  for (const spec::FlatUnit& unit : units) {
    for (const spec::Parameter& p : unit.parameters)
      step::bind_parameter(w, unit, p, like(p.shape, dtype),
                           gradients ? like(p.shape, *gradients) : CountedTensor());
    step::bind_neighbours(w, unit,
                          [&](const spec::Neighbours& all) { return like(all.shape, dtype); });
  }
}

}  // namespace

ModelRole role_of(const JobModels& models, const spec::Phase& phase) {
  ModelRole role = models.at(phase.model);
  if (phase.adapter_off) {
    role.lora = {};
    role.trained = false;
  }
  if (phase.is_of_rollout()) role.shape = role.generating();
  return role;
}

Weights counted_weights(const ModelRole& role, Dtype dtype) {
  Weights w;
  w.architecture = role.shape;
  w.head = role.head;
  w.blocks.resize(static_cast<std::size_t>(role.shape.blocks()));
  const bool adapted = role.lora.rank > 0;
  std::optional<Dtype> gradients;
  if (role.trained) gradients = optimizer_of(role, dtype).gradients;
  bind_units(w, spec::flat_layout(role.shape, role.head), dtype,
             adapted ? std::nullopt : gradients);
  step::finish_binding(w);
  if (adapted) bind_units(w, spec::lora_layout(role.shape, role.head, role.lora), dtype, gradients);
  return w;
}

step::SlotCache<CountedTensor> counted_cache(const ModelRole& role, Dtype dtype, std::int64_t rows,
                                             std::int64_t tokens) {
  step::SlotCache<CountedTensor> out;
  out.keys.assign(static_cast<std::size_t>(role.shape.blocks()),
                  CountedTensor::outside(
                      {rows, role.shape.num_key_value_heads, tokens, role.shape.head_dim}, dtype));
  out.values = out.keys;
  return out;
}
step::AnyCache<CountedTensor> counted_cache(const ModelRole& role, Dtype dtype,
                                            const step::CacheShape& shape) {
  if (!shape.paged()) return counted_cache(role, dtype, shape.rows, shape.row_tokens);
  step::SlotCache<CountedTensor> pages =
      counted_cache(role, dtype, shape.pages + 1, step::kPageTokens);
  return step::PagedCache<CountedTensor>(
      std::move(pages.keys), std::move(pages.values),
      CountedTensor::outside({shape.rows, shape.row_pages()}, Dtype::kInt64), shape);
}

}  // namespace neap::plan
