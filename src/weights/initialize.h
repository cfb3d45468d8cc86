// Initial values of a model's weights and of adapters.
//
// Threads   libtorch's number of threads.
//
// Failure   neap::Error if a tensor does not match its unit.
//
// Cost      one pass over the elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/model/layout.h"

namespace neap::weights {

/// Initializes units [first, first + flat.size()) of flat_layout as Hugging Face does: normal(0,
/// 0.02) for matrices, one for the gain of norms, zero for biases and the scalar head. Values do
/// not depend on the device, the number of threads, or which units are filled together.
void initialize(const spec::Architecture& shape, spec::Head head, std::size_t first,
                const std::vector<at::Tensor>& flat, std::uint64_t seed,
                double standard_deviation = 0.02);
/// Initializes units of lora_layout from `first` on: A is uniform in +-1/sqrt(in), B is zero. The
/// adapted model therefore starts equal to its base.
void initialize_adapters(const spec::Architecture& shape, spec::Head head,
                         const spec::LoraShape& lora, const std::vector<at::Tensor>& flat,
                         std::uint64_t seed, std::size_t first = 0);

}  // namespace neap::weights
