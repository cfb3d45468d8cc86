// Pipeline schedules: what each stage does for the gradients of a mini-batch, as a list of actions.
//
// The blocks of a model are divided into stages * chunks parts; chunk c of stage s is part c *
// stages + s. Micro-batches pass through all parts in order, and their gradients back. Every part
// accumulates gradients in ascending order of micro-batches, so results are bitwise those of one
// rank.
//
// - One stage: forward and backward of each micro-batch in turn (accumulation).
// - One chunk: 1F1B. Stage s starts with stages - s - 1 forwards, then alternates forward and
//   backward, so that it keeps at most stages - s micro-batches.
// - Zero bubble (ZB-H1 of Qi et al., 2023): 1F1B whose backward is divided into input gradients and
//   weight gradients. Stage s computes the latter s micro-batches later, so that it has work while
//   others warm up and drain. Every stage keeps something of `stages` micro-batches, as many as the
//   first stage does. With times F, B and W, stages wait (stages - 1) (F + B - W) instead of
//   (stages - 1) (F + B + W).
// - Several chunks: interleaved 1F1B as in Megatron, in rounds of `stages` micro-batches per chunk.
//   If the last round has fewer, its stages wait for the missing ones. Between warm-up and drain, a
//   stage runs a forward and a backward, then the transfers of both. Its neighbours transfer at the
//   same time, so no stage waits because another one sends in the middle of its work.
//
// Transfers cannot deadlock, even if a send returns only when its receive has begun. All lists are
// parts of one global order of actions, in which each transfer occurs once: after the action that
// produces its data, and before the one that needs it. The order is that of stages whose backward
// takes as long as two forwards, and each of its parts as long as one forward.
//
// Threads   values and stateless functions.
// Cost      proportional to stages * chunks * micro_batches.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "spec/model/architecture.h"

namespace neap::step {

struct PipelineShape {
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;
  std::int64_t chunks = 1;   ///< parts of the model per stage
  bool zero_bubble = false;  ///< with one chunk only
  [[nodiscard]] std::int64_t parts() const { return stages * chunks; }
  [[nodiscard]] std::int64_t part(std::int64_t stage, std::int64_t chunk) const {
    return chunk * stages + stage;
  }
};
/// The idle share of a pipeline whose parts take equally long: waits over work. Megatron, 2.2. Qi,
/// 2.3, for a zero bubble, if a forward and both parts of a backward take equally long.
[[nodiscard]] constexpr double equal_bubble(std::int64_t stages, double micro_batches,
                                            std::int64_t chunks, bool zero_bubble) {
  return static_cast<double>(stages - 1) /
         (micro_batches * static_cast<double>(chunks * (zero_bubble ? 3 : 1)));
}
/// The schedule's shape for a model's stages.
[[nodiscard]] inline PipelineShape shape_of(const spec::PipelineStage& stage,
                                            std::int64_t micro_batches = 1) {
  return {stage.stages, micro_batches, stage.chunks, stage.zero_bubble};
}
struct PipelineAction {
  enum class Kind : std::uint8_t {
    kReceiveHidden,     ///< input of a chunk, from the previous stage
    kForward,           ///< of a micro-batch through a chunk
    kSendHidden,        ///< output of the chunk
    kReceiveGradients,  ///< gradients of a chunk's output, from the next stage
    kBackward,          ///< through a chunk; the last chunk of the last stage starts with the loss
    kSendGradients,     ///< gradients of the chunk's input
    // A backward in two parts:
    kBackwardInput,    ///< without the weight gradients of the blocks' matrices
    kBackwardWeights,  ///< these weight gradients
  };
  Kind kind = Kind::kForward;
  std::int64_t micro_batch = 0, chunk = 0;
  std::int64_t peer = -1;  ///< of a transfer: the other stage
  [[nodiscard]] bool computes() const {
    return kind == Kind::kForward || kind == Kind::kBackward || kind == Kind::kBackwardInput ||
           kind == Kind::kBackwardWeights;
  }
  [[nodiscard]] bool sends() const {
    return kind == Kind::kSendHidden || kind == Kind::kSendGradients;
  }
  friend auto operator<=>(const PipelineAction&, const PipelineAction&) = default;
};
using PipelineActions = std::vector<PipelineAction>;

/// One list per stage. All sizes are at least 1.
[[nodiscard]] std::vector<PipelineActions> pipeline_schedule(const PipelineShape& shape);

/// The list of one stage, in a fraction of the time.
[[nodiscard]] PipelineActions stage_schedule(const PipelineShape& shape, std::int64_t stage);

/// For a forward pass without a backward: each micro-batch passes through all chunks in turn.
[[nodiscard]] std::vector<PipelineActions> pipeline_inference(const PipelineShape& shape);

/// Maximum numbers of tensors that a list keeps at the same time.
struct PipelineStorage {
  std::int64_t tapes = 0;          ///< chunks that wait for their backward, or a part of it
  std::int64_t micro_batches = 0;  ///< micro-batches of these
  std::int64_t received = 0;       ///< hidden states and gradients that wait for their use
};
[[nodiscard]] PipelineStorage storage_of(const PipelineActions& actions);
/// The maximum number of micro-batches of which a stage keeps something for a backward, for any
/// number of micro-batches.
[[nodiscard]] std::int64_t micro_batches_kept(const PipelineShape& shape, std::int64_t stage);
/// The maximum number of micro-batches whose inputs of a chunk wait for its backward, or for the
/// first part of it.
[[nodiscard]] std::int64_t inputs_kept(const PipelineShape& shape, std::int64_t stage);

/// Seconds per micro-batch.
struct PipelineTimes {
  std::vector<double> forward, backward;  ///< per part
  /// From each stage to the next one, or back; from the last stage to the first.
  std::vector<double> transfer{};
  /// Per part, if the backward has two parts: the time of the weight gradients. `backward` is then
  /// that of the input gradients.
  std::vector<double> weights{};
};
struct PipelineRun {
  double seconds = 0;  ///< of the stage that ends last
  // Per stage:
  std::vector<double> busy;          ///< computing
  std::vector<double> transferring;  ///< in transfers, once both stages are ready
  std::vector<double> ends;          ///< end of the stage
};
/// A time span in which a stage computes.
struct PipelineSpan {
  std::size_t stage = 0;
  PipelineAction action;
  double begin = 0, end = 0;
};
/// Simulates all lists. A transfer starts when both stages have reached it, and occupies both until
/// it is done. Fails if stages deadlock. `spans`, if not null, receives the computation spans.
[[nodiscard]] Result<PipelineRun> run_pipeline(const std::vector<PipelineActions>& stages,
                                               const PipelineTimes& times,
                                               std::vector<PipelineSpan>* spans = nullptr);

}  // namespace neap::step
