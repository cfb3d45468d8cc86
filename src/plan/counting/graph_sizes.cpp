#include "plan/counting/graph_sizes.h"

#include <vector>

#include "plan/counting/counted_model.h"
#include "plan/counting/counted_source.h"
#include "step/counting/scratch_places.h"
#include "step/generation/decode_graphs.h"

namespace neap::plan {

Bytes graph_scratch(const ModelRole& role, step::Dtype dtype, std::int64_t rows,
                    std::int64_t tokens, const step::SamplingOptions& sampling,
                    step::KernelProfile profile) {
  profile.graphs = profile.cuda;
  step::ScratchSink memory;
  step::CountingOps ops(memory, profile, 1);
  const step::Weights<step::CountedTensor> weights = counted_weights(role, dtype);
  step::SlotCache<step::CountedTensor> cache = counted_cache(role, dtype, rows, tokens);
  std::vector<step::GenerationAction> actions;
  step::for_each_graph(rows, tokens, [&](const step::GraphKey& key) {
    actions.emplace_back(step::DecodeStep{key.rows, key.key_limit});
  });
  CountedSource source(actions, sampling);
  step::run_generation(ops, weights, cache, source);
  return Bytes(ops.graphs_made().scratch());
}

}  // namespace neap::plan
