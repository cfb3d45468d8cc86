// A job's model with tensors that only have sizes, for passes that count.
//
// Threads   stateless functions.
#pragma once

#include <cstdint>

#include "plan/counting/tags.h"
#include "step/counting/counting_ops.h"
#include "step/model/paged_cache.h"
#include "step/operations/weights.h"

namespace neap::plan {

/// The model as a phase runs it: without the adapter if the phase disables it, and with the
/// rollout's shard in rollouts.
[[nodiscard]] ModelRole role_of(const JobModels& models, const spec::Phase& phase);

/// Parameters take no memory here; their regions are counted elsewhere.
[[nodiscard]] step::Weights<step::CountedTensor> counted_weights(const ModelRole& role,
                                                                 step::Dtype dtype);

/// A KV cache of the model, whose region is counted elsewhere.
[[nodiscard]] step::SlotCache<step::CountedTensor> counted_cache(const ModelRole& role,
                                                                 step::Dtype dtype,
                                                                 std::int64_t rows,
                                                                 std::int64_t tokens);
/// The same of any layout.
[[nodiscard]] step::AnyCache<step::CountedTensor> counted_cache(const ModelRole& role,
                                                                step::Dtype dtype,
                                                                const step::CacheShape& shape);

}  // namespace neap::plan
