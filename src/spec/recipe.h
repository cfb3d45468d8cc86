// The recipe of a job: its models, the phases of one step, and for every phase the tags that it
// needs, writes or discards. Plans price this list and the trainer runs it.
//
// A new algorithm adds a Task, its function in recipe.cpp and the bodies that it lacks.
//
// Threads   values and functions without state.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/architecture.h"
#include "spec/job.h"

namespace neap::spec {

enum class PhaseId : std::uint8_t {
  kGenerate,
  kActorLogProbs,
  kReferenceLogProbs,
  kValues,
  kRewards,
  kTrainCritic,
  kTrainActor,
  kTrain,
  kValidate,
  // A training phase in two parts (TrainPart).
  kBackwardCritic,
  kUpdateCritic,
  kBackwardActor,
  kUpdateActor,
  kBackward,
  kUpdate,
  // ReMax's greedy response to each prompt, and its score.
  kGenerateBaseline,
  kBaselineRewards,
};
constexpr std::size_t kPhases = 17;
/// The name in plans, traces, reports and metrics: "generate", "actor_logp".
[[nodiscard]] std::string_view to_string(PhaseId phase);

/// Which part of a training body a phase runs.
enum class TrainPart : std::uint8_t {
  kNone,      ///< the phase does not train
  kAll,       ///< every mini-batch: forward, backward and update
  kBackward,  ///< forward and backward of one mini-batch
  kUpdate,    ///< its optimizer step
};

/// What a phase runs (step/runner.h).
enum class Body : std::uint8_t {
  kGenerate,        ///< prefill and decode
  kLogProbs,        ///< of responses
  kTokenScores,     ///< a score at every token of a response
  kSequenceScores,  ///< a score at the last token
  kPolicyUpdate,
  kValueUpdate,
  kCrossEntropyUpdate,
  kPairUpdate,        ///< Bradley-Terry on chosen and rejected
  kPreferenceUpdate,  ///< DPO on them
  kCrossEntropy,      ///< log-probabilities of the data, without an update
  kPairScores,
};

/// A kind of memory that outlives a phase.
enum class TagKind : std::uint8_t {
  kWeights,
  kBuffers,  ///< slots for the blocks of streamed or sliced weights; of streamed ones that are trained, their gradients
  /// While the model generates, all blocks of streamed weights; all weights of its part where ranks have slices, stages or
  /// other parts of it in training.
  kBlocks,
  kAdapter,
  kGradients,      ///< all, or this rank's slice
  kUnitGradients,  ///< of sliced ones: those of the unit that backward is at
  kOptimizer,      ///< the states, or slots for streamed ones
  kKeyValues,
  kPeers,  ///< what the library keeps by which ranks talk: no contents, always there
};
constexpr std::size_t kTagKinds = 9;
struct TagId {
  TagKind kind = TagKind::kWeights;
  ModelId model = ModelId::kActor;
  friend auto operator<=>(const TagId&, const TagId&) = default;
};
/// "actor.weights", "critic.optimizer", "rollout.kv", "ranks.nccl".
[[nodiscard]] std::string to_string(TagId tag);
/// Nothing reads what an earlier phase left in it.
[[nodiscard]] constexpr bool is_scratch(TagKind kind) {
  return kind == TagKind::kGradients || kind == TagKind::kKeyValues || kind == TagKind::kBuffers ||
         kind == TagKind::kBlocks || kind == TagKind::kUnitGradients || kind == TagKind::kPeers;
}

/// A model of the job and where it comes from.
struct ModelSource {
  ModelId id = ModelId::kActor;
  std::string path;
  Head head = Head::kLanguageModel;
  /// Of a trained model; null: frozen. Both point into the job.
  const ModelConfig* trained = nullptr;
  const OptimizerConfig* optimizer = nullptr;
  double grad_clip = 0;    ///< most gradient norm; 0: any
  bool init_head = false;  ///< a scalar head that the folder lacks starts at zero
  std::string adapter{};   ///< folder of an adapter that is merged into the weights; empty: none
  /// Its blocks rest on the host; each is on the device while it is used, and all while it generates.
  bool streamed = false;
  bool streams_tables = false;  ///< so do its embedding and its head, where they can
  /// Of a trained one: a rank keeps the gradients that it steps, and backward has memory for those of two units. Not
  /// where blocks that train rest on the host: whole gradients rest there, too.
  bool slices_gradients = false;
  /// Each rank has a slice of its weights. A block, the embedding and the head are gathered to be used, all of them
  /// together to generate.
  bool sliced = false;
  bool slice_on_host = false;      ///< and this rank's rests on the host: it comes to be gathered
  bool gradients_on_host = false;  ///< of such a trained one: the slice of its gradients, too
  bool streams_states = false;  ///< its optimizer states rest there, and parts come to be stepped
  bool states_on_disk = false;  ///< or on disk
  /// What else rests on the host rests there: blocks of a streamed one with their gradients, or slices.
  bool blocks_on_disk = false;
  bool inputs_on_host =
      false;  ///< of a streamed one: what its blocks read waits there for the backward
  [[nodiscard]] bool adapted() const { return trained != nullptr && trained->lora.rank > 0; }
};

/// How what a phase's model has comes from where it rests. Predictions of a phase depend on it: they are kept by it.
struct PhaseStreaming {
  /// Blocks come from the host one after another, tables in turns, and in an update optimizer states.
  bool streams_weights = false, streams_tables = false, streams_states = false;
  bool states_on_disk = false;  ///< of streamed ones
  bool blocks_on_disk = false;  ///< of streamed weights, or slices
  bool slices_weights = false;  ///< blocks and tables are gathered one after another
  bool slices_gradients = false;
  bool slice_on_host = false, gradients_on_host = false;
  /// Inputs of streamed blocks wait on the host between their forward and their backward.
  bool inputs_on_host = false;
  /// All of the weights that rest elsewhere come when the phase begins; of streamed ones this rank's blocks from the host.
  bool gathers_weights = false, fetches_blocks = false;
  friend auto operator<=>(const PhaseStreaming&, const PhaseStreaming&) = default;
};

struct Phase : PhaseStreaming {
  PhaseId id = PhaseId::kTrain;
  Body body = Body::kCrossEntropyUpdate;
  ModelId model = ModelId::kActor;  ///< the one that it runs
  bool adapter_off = false;         ///< the frozen base alone, as the reference
  bool baseline = false;            ///< of one greedy response to each prompt
  bool entropy = false;             ///< of log-probabilities: their entropy, too
  TrainPart part = TrainPart::kNone;
  /// Micro-batches that go through a block before the next block is used, where weights are streamed or sliced.
  std::int64_t together = 1;
  /// Steps may have no other phase: then it follows itself.
  bool follows_itself = false;
  /// Runs in a step. A backward phase and the update behind it repeat together, in turn. 0: the phase
  /// runs before the first step and never again, with nothing on the device but what it needs.
  std::int64_t times = 1;
  double share = 1;             ///< of steps that have it: less than one of a validation
  std::vector<TagId> needs;     ///< resident during the phase
  std::vector<TagId> writes;    ///< of needs, those whose contents change
  std::vector<TagId> discards;  ///< not needed, and their contents are worthless from here on
  [[nodiscard]] bool trains() const { return part != TrainPart::kNone; }
  /// It reads or writes what an update changes of the optimizer.
  [[nodiscard]] bool updates() const {
    return part == TrainPart::kAll || part == TrainPart::kUpdate;
  }
  [[nodiscard]] bool runs_once() const { return times == 0; }
};

/// How a training body goes through a rank's rows: sequences, or pairs of them.
struct UpdateShape {
  std::int64_t epochs = 1;
  std::int64_t rows = 0;         ///< of an epoch
  std::int64_t mini_batch = 0;   ///< rows of an optimizer step
  std::int64_t micro_batch = 0;  ///< rows of a forward and backward
  /// Optimizer steps of a training step.
  [[nodiscard]] std::int64_t updates() const { return epochs * (rows / mini_batch); }
};
/// Of a body that trains.
[[nodiscard]] UpdateShape update_shape(const Job& job, Body body);

/// How a phase cuts its rows into micro-batches.
struct Batching {
  std::int64_t rows = 0;  ///< of a micro-batch; of a rollout those that are decoded together
  /// Of one with packed sequences, those that other ranks have of them, too; 0: they are padded, and `rows` counts.
  std::int64_t tokens = 0;
  std::int64_t sequences_of_row = 1;  ///< 2 of pairs in training
  std::int64_t most_rows = 0;         ///< of a step or mini-batch; no packed micro-batch has more
  std::int64_t together = 1;          ///< micro-batches of a group
  friend auto operator<=>(const Batching&, const Batching&) = default;
};
[[nodiscard]] Batching batching_of(const Job& job, const Phase& phase);

struct Recipe {
  Task task = Task::kPpo;
  std::vector<ModelSource> models;
  std::vector<TagId> tags;    ///< in the order in which their regions are made
  std::vector<Phase> phases;  ///< one step, in order; last those that run once, before the first

  /// Null when the job has none.
  [[nodiscard]] const ModelSource* find(ModelId model) const;
  [[nodiscard]] const Phase* find(PhaseId phase) const;
  /// The first phase that runs `body`, or that part of it.
  [[nodiscard]] const Phase* find(Body body, std::optional<TrainPart> part = {}) const;
  /// Models with gradients, in order.
  [[nodiscard]] std::vector<ModelId> trained() const;
  /// Some phase generates with the model.
  [[nodiscard]] bool generates(ModelId model) const;
  /// No phase writes it: what was loaded stays valid.
  [[nodiscard]] bool frozen(TagId tag) const;
};

/// How a step runs each model: a trained one's updates divided into phases, weights streamed.
class ModelModes {
 public:
  [[nodiscard]] UpdateMode of(ModelId model) const { return modes_[index(model)]; }
  void set(ModelId model, UpdateMode mode) { modes_[index(model)] = mode; }
  [[nodiscard]] bool streams_weights(ModelId model) const { return streamed_[index(model)]; }
  void stream_weights(ModelId model) { streamed_[index(model)] = true; }
  /// Of streamed weights.
  [[nodiscard]] bool streams_tables(ModelId model) const { return tables_[index(model)]; }
  void stream_tables(ModelId model) { tables_[index(model)] = true; }
  /// Of streamed weights: blocks rest on disk, with their gradients; of sliced ones the slices that else rest on the host.
  [[nodiscard]] bool blocks_on_disk(ModelId model) const { return disk_[index(model)]; }
  void keep_blocks_on_disk(ModelId model) { disk_[index(model)] = true; }
  /// Of streamed weights of a trained model.
  [[nodiscard]] bool inputs_on_host(ModelId model) const { return inputs_[index(model)]; }
  void keep_inputs_on_host(ModelId model) { inputs_[index(model)] = true; }
  /// Of sliced weights of a trained model whose slice rests on the host: that of its gradients does, too.
  [[nodiscard]] bool gradients_on_host(ModelId model) const { return gradients_[index(model)]; }
  void keep_gradients_on_host(ModelId model) { gradients_[index(model)] = true; }
  /// Of streamed or sliced weights: micro-batches that go through a block before the next block is used.
  [[nodiscard]] std::int64_t together(ModelId model) const { return together_[index(model)]; }
  void set_together(ModelId model, std::int64_t count) { together_[index(model)] = count; }
  friend bool operator==(const ModelModes&, const ModelModes&) = default;

 private:
  static std::size_t index(ModelId model) { return static_cast<std::size_t>(model); }
  std::array<UpdateMode, kModels> modes_{};
  std::array<bool, kModels> streamed_{}, tables_{}, disk_{}, inputs_{}, gradients_{};
  std::array<std::int64_t, kModels> together_ = [] {
    std::array<std::int64_t, kModels> out{};
    out.fill(1);
    return out;
  }();
};

/// Models whose weights, or slices of them, can rest on the host: those that a phase of a step runs for something else
/// than to generate, which reads every block for each token.
[[nodiscard]] std::vector<ModelId> streamable(const Recipe& recipe);
/// The recipe of `job`, which must outlive it.
[[nodiscard]] Recipe describe(const Job& job, const ModelModes& modes = {});

}  // namespace neap::spec
