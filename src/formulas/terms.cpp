#include "formulas/terms.h"

#include <algorithm>

#include "base/format.h"
#include "step/pipeline/pipeline_schedule.h"

namespace neap::formulas {

Status check(const Degrees& degrees, double layers) {
  const auto wrong = [](std::string text) {
    return Status(ErrorCode::kInvalidArgument, std::move(text));
  };
  if (degrees.tensor < 1 || degrees.pipeline < 1 || degrees.data < 1)
    return wrong("Degrees of tensor, pipeline and data parallelism are at least 1");
  if (degrees.zero < 0 || degrees.zero > 3)
    return wrong(format("ZeRO has stages 0 to 3, not {}", degrees.zero));
  if (static_cast<double>(degrees.pipeline) > layers)
    return wrong(format("{} pipeline stages are more than the model's {:.0f} layers",
                        degrees.pipeline, layers));
  if (degrees.sequence_parallel && degrees.tensor == 1)
    return wrong("Sequence parallelism needs a tensor-parallel degree above 1");
  return {};
}

double attention_parameters(const Decoder& d) {
  return d.layers * (4 * d.hidden * d.hidden + 4 * d.hidden);
}
double mlp_parameters(const Decoder& d) {
  return d.layers * (8 * d.hidden * d.hidden + 5 * d.hidden);
}
double norm_parameters(const Decoder& d) {
  return d.layers * 4 * d.hidden;
}
double embedding_parameters(const Decoder& d) {
  return d.vocabulary * d.hidden;
}
double parameters(const Decoder& d) {
  return attention_parameters(d) + mlp_parameters(d) + norm_parameters(d) + embedding_parameters(d);
}

States states(double parameters, const ParameterBytes& bytes, std::int64_t stage, double ranks) {
  return {parameters * bytes.weight / (stage >= 3 ? ranks : 1),
          parameters * bytes.gradient / (stage >= 2 ? ranks : 1),
          parameters * bytes.optimizer / (stage >= 1 ? ranks : 1)};
}

double stage_parameters(double layer_parameters, double layers, double embedding_parameters,
                        const Degrees& degrees) {
  return (layers / static_cast<double>(degrees.pipeline) * layer_parameters +
          embedding_parameters) /
         static_cast<double>(degrees.tensor);
}

double layer_activations(const Decoder& d, const MicroBatch& batch, Recompute recompute,
                         const Degrees& degrees) {
  const double sbh = batch.length * batch.sequences * d.hidden * batch.width / 2;
  if (recompute == Recompute::kFull) return 2 * sbh;
  const auto t = static_cast<double>(degrees.tensor);
  // Tensor parallelism does not shard inputs, norms and the dropout masks after both parts: 10 of
  // the 34.
  const double whole = degrees.sequence_parallel ? 10 / t : 10;
  const double scores =
      recompute == Recompute::kSelective ? 0 : 5 * d.heads * batch.length / (d.hidden * t);
  return sbh * (whole + 24 / t + scores);
}

double activations(const Decoder& d, const MicroBatch& batch, Recompute recompute,
                   const Degrees& degrees, double micro_batches) {
  const auto p = static_cast<double>(degrees.pipeline), c = static_cast<double>(degrees.chunks);
  const double kept = degrees.chunks > 1 ? p + (p - 1) / c : p;
  return d.layers / p * std::min(kept, micro_batches) *
         layer_activations(d, batch, recompute, degrees);
}

double output_activations(const Decoder& d, const MicroBatch& batch, const Degrees& degrees) {
  return 4 * batch.length * batch.sequences * (d.hidden + d.vocabulary) * batch.width / 2 /
         static_cast<double>(degrees.tensor);
}

double kv_cache(const Decoder& d, double sequences, double tokens, double width) {
  return 2 * width * sequences * tokens * d.layers * d.hidden;
}

double pipeline_bubble(const Degrees& degrees, double micro_batches) {
  return step::equal_bubble(degrees.pipeline, micro_batches, degrees.chunks, degrees.zero_bubble);
}

}  // namespace neap::formulas
