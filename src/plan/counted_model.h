// A job's model with tensors that only have sizes: what passes that count run over.
//
// Threads   functions without state.
#pragma once

#include <cstdint>

#include "plan/tags.h"
#include "step/counting_ops.h"
#include "step/kv_layout.h"
#include "step/weights.h"

namespace neap::plan {

/// The model that a phase runs: without the adapter where the phase switches it off, and as ranks divide it there.
[[nodiscard]] ModelRole role_of(const JobModels& models, const spec::Phase& phase);

/// A model whose parameters take no memory: their regions are counted elsewhere.
[[nodiscard]] step::Weights<step::CountedTensor> counted_weights(const ModelRole& role,
                                                                 step::Dtype dtype);

/// A KV cache of the model, whose region is counted elsewhere.
[[nodiscard]] step::SlotCache<step::CountedTensor> counted_cache(const ModelRole& role,
                                                                 step::Dtype dtype,
                                                                 std::int64_t rows,
                                                                 std::int64_t tokens);

}  // namespace neap::plan
