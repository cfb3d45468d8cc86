#include "plan/counting/graph_sizes.h"

#include <variant>
#include <vector>

#include "plan/counting/counted_model.h"
#include "plan/counting/counted_source.h"
#include "step/counting/scratch_places.h"
#include "step/generation/decode_graphs.h"

namespace neap::plan {

Bytes graph_scratch(const ModelRole& role, step::Dtype dtype, const step::CacheShape& shape,
                    const step::SamplingOptions& sampling, step::KernelProfile profile) {
  profile.graphs = profile.cuda;
  step::ScratchSink memory;
  step::CountingOps ops(memory, profile, 1);
  const step::Weights<step::CountedTensor> weights = counted_weights(role, dtype);
  step::AnyCache<step::CountedTensor> any = counted_cache(role, dtype, shape);
  std::vector<step::GenerationAction> actions;
  step::for_each_graph(shape.rows, shape.row_tokens, [&](const step::GraphKey& key) {
    actions.emplace_back(step::DecodeStep{key.rows, key.key_limit});
  });
  CountedSource source(actions, sampling);
  std::visit([&](auto& cache) { step::run_generation(ops, weights, cache, source); }, any);
  return Bytes(ops.graphs_made().scratch());
}

}  // namespace neap::plan
