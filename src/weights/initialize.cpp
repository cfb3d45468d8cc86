#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "base/random.h"
#include "ops/transformer.h"
#include "spec/model/pipeline.h"
#include "weights/initialize.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

using at::Tensor;

// Draws in float32, with a separate stream per piece. The values are therefore the same on every
// device and for every number of threads.
template <class Draw>
void draw(const Tensor& target, std::uint64_t key, const Draw& draw_piece) {
  fill_tensor(target, [&](std::uint64_t piece, std::span<float> values) {
    at::Generator generator = at::detail::createCPUGenerator(random_key({key, piece}));
    const Tensor view = at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                                      at::dtype(at::kFloat));
    draw_piece(view, generator);
  });
}

// Calls visit(parameter's view, parameter, key) for the units from `first` on. `whole`: the units
// of all stages.
template <class Visit>
void for_each_parameter(const std::vector<spec::FlatUnit>& whole,
                        const std::vector<spec::FlatUnit>& units, std::size_t first,
                        const std::vector<Tensor>& flat, std::uint64_t seed, const Visit& visit) {
  const std::vector<std::size_t> numbers = spec::numbers_in(whole, units);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const spec::FlatUnit& unit = units.at(first + i);
    ops::check_flat(flat[i], unit, "weights");
    for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
      const spec::Parameter& parameter = unit.parameters[p];
      visit(ops::parameter_view(flat[i], parameter), parameter,
            random_key({seed, numbers[first + i], p}));
    }
  }
}

}  // namespace

void initialize(const spec::Architecture& shape, spec::Head head, std::size_t first,
                const std::vector<Tensor>& flat, std::uint64_t seed, double standard_deviation) {
  const bool offset = shape.norm == spec::NormKind::kRmsOffset;
  const auto visit = [&](const Tensor& weight, const spec::Parameter& p, std::uint64_t key) {
    if (p.name.ends_with(".bias") || p.name == "score.weight") {
      weight.zero_();
    } else if (weight.dim() == 1) {
      weight.fill_(offset ? 0 : 1);  // the gain of a norm is one
    } else {
      draw(weight, key, [&](const Tensor& piece, at::Generator& generator) {
        piece.normal_(0, standard_deviation, generator);
      });
    }
  };
  for_each_parameter(spec::flat_layout(spec::undivided(shape), head),
                     spec::flat_layout(shape, head), first, flat, seed, visit);
}

void initialize_adapters(const spec::Architecture& shape, spec::Head head,
                         const spec::LoraShape& lora, const std::vector<Tensor>& flat,
                         std::uint64_t seed, std::size_t first) {
  const auto visit = [&](const Tensor& weight, const spec::Parameter& p, std::uint64_t key) {
    if (!p.name.ends_with(".lora_A.weight")) {
      weight.zero_();
      return;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
    draw(weight, key, [&](const Tensor& piece, at::Generator& generator) {
      piece.uniform_(-bound, bound, generator);
    });
  };
  // Uses a different stream than the weights.
  for_each_parameter(spec::lora_layout(spec::undivided(shape), head, lora),
                     spec::lora_layout(shape, head, lora), first, flat, seed + 1, visit);
}

}  // namespace neap::weights
