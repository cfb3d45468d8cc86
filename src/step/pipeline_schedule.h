// What the stages of a pipeline do for the gradients of a mini-batch, as data: a list of actions a stage.
//
// The blocks of a model are cut into stages * chunks parts; chunk c of stage s is part c * stages + s.
// Micro-batches go through all parts in order, their gradients back. Every part adds the gradients of
// micro-batches in ascending order: parameters get the bits that one rank accumulates.
//
// - One stage: forward and backward of each micro-batch in turn (accumulation).
// - One chunk: 1F1B. Stage s begins with stages - s - 1 forwards, then takes a forward and a backward in
//   turn, so that at most stages - s micro-batches are kept for their backward.
// - Zero bubble (ZB-H1 of Qi et al., 2023): 1F1B whose backward is in two parts, the input's and the weights'. Stage s
//   does the latter s micro-batches later, so that it has work while others warm up and drain. Each stage keeps something
//   of as many micro-batches as the first one does, `stages`. Where these parts take B and W and a forward F, stages wait
//   (stages - 1) (F + B - W) in place of (stages - 1) (F + B + W).
// - Several chunks: interleaved 1F1B as in Megatron, in rounds of `stages` micro-batches a chunk. Where the last round
//   has fewer, its stages wait for those that it lacks. Between warming up and draining a stage takes a forward and a
//   backward, and then makes the transfers of both: at that time its neighbours are there, too, and no stage waits
//   because it has to send in the middle of another one's work.
//
// Transfers cannot wait for each other in a circle, even where a send returns only when its receive has
// begun: all lists are parts of one order of everything that the stages do, in which a transfer stands
// once, behind the action that makes what it carries and in front of the one that needs it. The order is that
// of stages whose backward takes as long as two forwards, and each of its parts as long as one.
//
// Threads   values and functions without state.
//
// Cost      proportional to stages * chunks * micro_batches.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "spec/architecture.h"

namespace neap::step {

struct PipelineShape {
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;
  std::int64_t chunks = 1;   ///< parts of the model that a stage has
  bool zero_bubble = false;  ///< of one chunk
  [[nodiscard]] std::int64_t parts() const { return stages * chunks; }
  [[nodiscard]] std::int64_t part(std::int64_t stage, std::int64_t chunk) const {
    return chunk * stages + stage;
  }
};
/// Of the schedule of a model's stages.
[[nodiscard]] inline PipelineShape shape_of(const spec::PipelineStage& stage,
                                            std::int64_t micro_batches = 1) {
  return {stage.stages, micro_batches, stage.chunks, stage.zero_bubble};
}
struct PipelineAction {
  enum class Kind : std::uint8_t {
    kReceiveHidden,     ///< the input of a chunk, from the stage before it
    kForward,           ///< of a micro-batch through a chunk
    kSendHidden,        ///< its output
    kReceiveGradients,  ///< those of a chunk's output, from the stage behind it
    kBackward,          ///< through a chunk; begins with the loss in the last one of the last stage
    kSendGradients,     ///< those of its input
    // A backward in two parts:
    kBackwardInput,    ///< without the gradients of the blocks' matrices
    kBackwardWeights,  ///< these
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

/// One list a stage. Sizes are 1 at least.
[[nodiscard]] std::vector<PipelineActions> pipeline_schedule(const PipelineShape& shape);

/// One of them, in a fraction of the time.
[[nodiscard]] PipelineActions stage_schedule(const PipelineShape& shape, std::int64_t stage);

/// Of a forward pass without a backward: each micro-batch through all chunks in turn.
[[nodiscard]] std::vector<PipelineActions> pipeline_inference(const PipelineShape& shape);

/// What a list keeps at the same time.
struct PipelineStorage {
  std::int64_t tapes = 0;          ///< chunks that wait for their backward, or a part of it
  std::int64_t micro_batches = 0;  ///< of these
  std::int64_t received = 0;       ///< hidden states and gradients that wait for their use
};
[[nodiscard]] PipelineStorage storage_of(const PipelineActions& actions);
/// Micro-batches of which a stage keeps something for a backward, of as many as there may be: the shape's number of them
/// does not matter.
[[nodiscard]] std::int64_t micro_batches_kept(const PipelineShape& shape, std::int64_t stage);

/// Seconds of a micro-batch.
struct PipelineTimes {
  std::vector<double> forward, backward;  ///< of every part
  std::vector<double>
      transfer{};  ///< of every stage to the next one or back; from the last one to the first
  /// Of every part whose backward is in two: that of its weights. `backward` is that of its input then.
  std::vector<double> weights{};
};
struct PipelineRun {
  double seconds = 0;  ///< of the stage that ends last
  // Of each stage:
  std::vector<double> busy;          ///< computing
  std::vector<double> transferring;  ///< in transfers, when both stages are there
  std::vector<double> ends;          ///< when it is done
};
/// When a stage computes.
struct PipelineSpan {
  std::size_t stage = 0;
  PipelineAction action;
  double begin = 0, end = 0;
};
/// Runs the lists side by side. A transfer begins when both stages have come to it and takes both until it
/// is done. Fails when stages wait for each other.
/// `spans`: what is computed when, unless it is null.
[[nodiscard]] Result<PipelineRun> run_pipeline(const std::vector<PipelineActions>& stages,
                                               const PipelineTimes& times,
                                               std::vector<PipelineSpan>* spans = nullptr);

}  // namespace neap::step
