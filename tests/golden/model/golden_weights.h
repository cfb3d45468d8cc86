// The weights of make_goldens.py's models: 24 bits of a multiplicative hash of a parameter's place in
// the sorted list of names.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/transformer.h"

namespace neap::testing {

inline void fill_golden_weights(const ops::Transformer& model) {
  std::vector<ops::NamedParameter> sorted = model.parameters();
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t place = 0; place < sorted.size(); ++place) {
    at::Tensor flat = sorted[place].weight.view(-1);
    auto* out = flat.data_ptr<double>();
    const bool norm = sorted[place].weight.dim() == 1 && sorted[place].name.ends_with("weight");
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      const std::uint64_t mixed = (place * 1000003 + static_cast<std::uint64_t>(i)) * 2654435761u;
      out[i] = (static_cast<double>((mixed & 0xffffffff) >> 8) / (1 << 24) - 0.5) * 0.4;
      if (norm) out[i] += 1;
    }
  }
}

}  // namespace neap::testing
