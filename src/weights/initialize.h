// First values of a model's weights and of adapters.
//
// Threads   libtorch's number of threads.
// Failure   neap::Error when a tensor is not what its unit asks for.
// Cost      one pass over the elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/layout.h"

namespace neap::weights {

/// Hugging Face's initialization of units [first, first + flat.size()) of flat_layout: normal(0, 0.02)
/// for matrices, a gain of one for norms, zero for biases and the scalar head. The same values on
/// every device, for every number of threads, and whichever units are filled together.
void initialize(const spec::Architecture& shape, spec::Head head, std::size_t first,
                const std::vector<at::Tensor>& flat, std::uint64_t seed,
                double standard_deviation = 0.02);
/// Units of lora_layout from `first` on: A uniform in +-1/sqrt(in), B zero: the adapted model starts as
/// its base.
void initialize_adapters(const spec::Architecture& shape, spec::Head head,
                         const spec::LoraShape& lora, const std::vector<at::Tensor>& flat,
                         std::uint64_t seed, std::size_t first = 0);

}  // namespace neap::weights
