// The recipe of a job: its models, the phases of one step, and for every phase the tags that it
// needs, writes or discards. Plans estimate this list, and the trainer runs it.
//
// A new algorithm needs a Task, a function in recipe.cpp, and any phase bodies that do not exist
// yet.
//
// Threads   values and stateless functions.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/job/job.h"
#include "spec/model/architecture.h"
#include "spec/types/homes.h"

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
  // A training phase divided into two (TrainPart).
  kBackwardCritic,
  kUpdateCritic,
  kBackwardActor,
  kUpdateActor,
  kBackward,
  kUpdate,
  // ReMax's greedy response to each prompt, and its reward.
  kGenerateBaseline,
  kBaselineRewards,
  // With a copy of the weights for the rollout (Colocation).
  kStoreWeights,
  kWakeUp,
};
constexpr std::size_t kPhases = 19;
/// Name in plans, traces, reports and metrics: "generate", "actor_logp".
[[nodiscard]] std::string_view to_string(PhaseId phase);

/// The part of a training body that a phase runs.
enum class TrainPart : std::uint8_t {
  kNone,      ///< the phase does not train
  kAll,       ///< every mini-batch: forward, backward and update
  kBackward,  ///< forward and backward of one mini-batch
  kUpdate,    ///< optimizer step of one mini-batch
};

/// The computation of a phase (step/pipeline/runner.h).
enum class Body : std::uint8_t {
  kGenerate,        ///< prefill and decode
  kRolloutWeights,  ///< fill, store or load the rollout's copy of the weights
  kLogProbs,        ///< log-probabilities of responses
  kTokenScores,     ///< a score at every token of a response
  kSequenceScores,  ///< a score at the last token
  kPolicyUpdate,
  kValueUpdate,
  kCrossEntropyUpdate,
  kPairUpdate,        ///< Bradley-Terry loss on chosen and rejected responses
  kPreferenceUpdate,  ///< DPO loss on chosen and rejected responses
  kCrossEntropy,      ///< log-probabilities of the data, without an update
  kPairScores,
};

/// Whether both responses of a pair are in one micro-batch.
[[nodiscard]] constexpr bool takes_pairs(Body body) {
  return body == Body::kPairUpdate || body == Body::kPreferenceUpdate;
}

/// A kind of memory that outlives a phase.
enum class TagKind : std::uint8_t {
  kWeights,
  /// Prefetch buffers for blocks of offloaded or sharded weights; also their gradients, if
  /// offloaded blocks are trained.
  kBuffers,
  /// Rollout weights: all blocks, if weights are offloaded. Otherwise all weights of the rank's
  /// rollout shard, if training has ZeRO shards, stages or another tensor-parallel size.
  kBlocks,
  kAdapter,
  kGradients,      ///< all of them, or this rank's shard
  kUnitGradients,  ///< sharded: gradients of the unit that backward computes
  kOptimizer,      ///< the states, or prefetch buffers for offloaded states
  kKeyValues,
  kGraphs,      ///< tensors of a decoding step in a CUDA graph
  kGraphNodes,  ///< memory of the driver for these graphs: no contents, always resident
  kPeers,       ///< the same of the communication library
};
constexpr std::size_t kTagKinds = 11;
struct TagId {
  TagKind kind = TagKind::kWeights;
  ModelId model = ModelId::kActor;
  friend auto operator<=>(const TagId&, const TagId&) = default;
};
/// "actor.weights", "critic.optimizer", "rollout.kv", "rollout.graphs", "ranks.nccl".
[[nodiscard]] std::string to_string(TagId tag);
/// Whether no phase reads what an earlier phase left in it.
[[nodiscard]] constexpr bool is_scratch(TagKind kind) {
  return kind == TagKind::kGradients || kind == TagKind::kKeyValues || kind == TagKind::kBuffers ||
         kind == TagKind::kBlocks || kind == TagKind::kUnitGradients || kind == TagKind::kGraphs ||
         kind == TagKind::kGraphNodes || kind == TagKind::kPeers;
}

/// A model of the job and the origin of its weights.
struct ModelSource {
  ModelId id = ModelId::kActor;
  std::string path;
  Head head = Head::kLanguageModel;
  /// For a trained model; null: frozen. Both pointers refer to the job.
  const ModelConfig* trained = nullptr;
  const OptimizerConfig* optimizer = nullptr;
  double grad_clip = 0;    ///< maximum gradient norm; 0: no clipping
  bool init_head = false;  ///< initialise a missing scalar head with zeros
  std::string adapter{};   ///< folder of an adapter to merge into the weights; empty: none
  ModelStorage storage{};
  [[nodiscard]] bool adapted() const { return trained != nullptr && trained->lora.rank > 0; }
};

/// Elements of wide logits that a head computes at a time: 128 MiB of float32. Each chunk reads and
/// writes the gradients of the matrix.
constexpr std::int64_t kLogitsChunk = std::int64_t{1} << 25;
/// Larger chunks that a plan may choose, the fastest first. They change the order of sums.
inline constexpr std::array kLargerLogitsChunks = {std::int64_t{1} << 28, std::int64_t{1} << 27};

struct Phase {
  PhaseId id = PhaseId::kTrain;
  Body body = Body::kCrossEntropyUpdate;
  ModelId model = ModelId::kActor;  ///< the model that the phase runs
  bool adapter_off = false;         ///< run the frozen base without its adapter, as the reference
  bool baseline = false;            ///< one greedy response per prompt
  bool entropy = false;             ///< with log-probabilities: also compute the entropy
  TrainPart part = TrainPart::kNone;
  /// The model's, where the phase uses it. Estimates of a phase depend on it, so it is part of the
  /// key of cached estimates.
  ModelStorage storage{};
  /// Gathers or loads all weights when it begins (a rollout).
  bool gathers_weights = false;
  /// Writes the rollout's copy of the weights to a file, or reads it.
  bool stores_weights = false, loads_weights = false;
  std::int64_t logits_chunk = kLogitsChunk;  ///< elements of a chunk of logits
  bool graphs =
      false;  ///< a generation decodes in CUDA graphs if it can (step/generation/decode_graphs.h)
  /// Number of runs per step. A backward phase and its update alternate. 0: the phase runs once,
  /// before the first step, and only the tags that it needs are on the device.
  std::int64_t times = 1;
  double share = 1;           ///< fraction of steps that include it; less than 1 for validation
  std::vector<TagId> needs;   ///< tags that are resident during the phase
  std::vector<TagId> writes;  ///< the subset of `needs` that it modifies
  /// Tags that it does not need and whose contents are no longer used.
  std::vector<TagId> discards;
  [[nodiscard]] bool trains() const { return part != TrainPart::kNone; }
  /// Whether it uses the model as rollouts do.
  [[nodiscard]] bool is_of_rollout() const {
    return body == Body::kGenerate || body == Body::kRolloutWeights;
  }
  [[nodiscard]] bool runs_backward() const {
    return part == TrainPart::kAll || part == TrainPart::kBackward;
  }
  /// Whether it reads or writes optimizer data that an update changes.
  [[nodiscard]] bool updates() const {
    return part == TrainPart::kAll || part == TrainPart::kUpdate;
  }
  [[nodiscard]] bool runs_once() const { return times == 0; }
  /// Whether layers are loaded or gathered one after another. A rollout has all of them.
  [[nodiscard]] bool brings_layers() const { return !is_of_rollout() && storage.brings_layers(); }
};

/// How a training body divides a rank's rows. A row is a sequence or a pair.
struct UpdateShape {
  std::int64_t epochs = 1;
  std::int64_t rows = 0;         ///< rows per epoch
  std::int64_t mini_batch = 0;   ///< rows per optimizer step
  std::int64_t micro_batch = 0;  ///< rows per forward and backward
  /// Optimizer steps per training step.
  [[nodiscard]] std::int64_t updates() const { return epochs * (rows / mini_batch); }
};
/// For a body that trains.
[[nodiscard]] UpdateShape update_shape(const Job& job, Body body);

/// The tokens of a rank's packed micro-batch, and the key that sets them.
struct TokenBudget {
  const char* key;
  std::int64_t tokens;
};
/// For a phase that does not generate: its own key, or the one that it falls back to.
[[nodiscard]] TokenBudget token_budget(const Job& job, const Phase& phase);

/// How a phase divides its rows into micro-batches.
struct Batching {
  std::int64_t rows = 0;  ///< rows per micro-batch; in a rollout, sequences decoded at once
  /// Tokens of a packed micro-batch, including those of other context-parallel ranks; 0: padded,
  /// and `rows` applies.
  std::int64_t tokens = 0;
  std::int64_t sequences_of_row = 1;  ///< 2 for pairs in training
  std::int64_t most_rows = 0;  ///< rows of a step or mini-batch, which bound a packed micro-batch
  std::int64_t together = 1;   ///< micro-batches per load of a block
  friend auto operator<=>(const Batching&, const Batching&) = default;
};
[[nodiscard]] Batching batching_of(const Job& job, const Phase& phase);

struct Recipe {
  Task task = Task::kPpo;
  std::vector<ModelSource> models;
  std::vector<TagId> tags;  ///< in the order in which their regions are created
  /// The phases of a step in order; then those that run once before the first step.
  std::vector<Phase> phases;

  /// Null if the job has no such model.
  [[nodiscard]] const ModelSource* find(ModelId model) const;
  [[nodiscard]] const Phase* find(PhaseId phase) const;
  /// The first phase that runs `body`, or that part of it.
  [[nodiscard]] const Phase* find(Body body, std::optional<TrainPart> part = {}) const;
  /// The phase that runs the model's forward and backward. Null: it is frozen.
  [[nodiscard]] const Phase* training_phase(ModelId model) const;
  /// Models with gradients, in order.
  [[nodiscard]] std::vector<ModelId> trained() const;
  /// Whether rollouts have a copy of the model's weights in a file between store and wake-up.
  [[nodiscard]] bool stores_weights(ModelId model) const;
  /// Whether some phase generates with the model.
  [[nodiscard]] bool generates(ModelId model) const;
  /// Whether no phase writes it, so that a loaded copy stays valid.
  [[nodiscard]] bool frozen(TagId tag) const;
};

/// How a step runs the models: the homes of each, chunks of logits, and decoding in graphs.
struct StepModes {
  std::array<ModelHomes, kModels> models{};
  std::int64_t logits_chunk = kLogitsChunk;
  bool graphs = false;
  [[nodiscard]] const ModelHomes& of(ModelId model) const {
    return models[static_cast<std::size_t>(model)];
  }
  [[nodiscard]] ModelHomes& of(ModelId model) { return models[static_cast<std::size_t>(model)]; }
  friend bool operator==(const StepModes&, const StepModes&) = default;
};

/// Models whose weights or shards can be offloaded: those that a step also uses outside of
/// generation. Generation reads every block for each token, so offloading would be too slow there.
[[nodiscard]] std::vector<ModelId> streamable(const Recipe& recipe);
/// The recipe of `job`, which must outlive it.
[[nodiscard]] Recipe describe(const Job& job, const StepModes& modes = {});

}  // namespace neap::spec
