// The memory of decoding in CUDA graphs.
//
// Threads   stateless functions.
// Cost      counts a step for each graph, a few dozen.
#pragma once

#include "plan/results/model_roles.h"
#include "step/counting/counted_work.h"
#include "step/generation/sampling.h"
#include "step/model/page_table.h"

namespace neap::plan {

/// Bytes of the tensors of a step's graphs, for a model as it generates with a cache.
/// Zero: its steps cannot be graphs (step/generation/decode_graphs.h).
[[nodiscard]] Bytes graph_scratch(const ModelRole& role, step::Dtype dtype,
                                  const step::CacheShape& shape,
                                  const step::SamplingOptions& sampling,
                                  step::KernelProfile profile);

}  // namespace neap::plan
