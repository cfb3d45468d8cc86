#include "plan/search/tunables.h"

#include <algorithm>
#include <array>
#include <utility>

#include "spec/keys/parallel_checks.h"
#include "spec/ranks/context_parallel.h"
#include "spec/recipe/job_change.h"
#include "step/model/page_table.h"

namespace neap::plan {
namespace {

namespace fields = spec::job_fields;
using Changes = std::vector<spec::JobChange>;
using Size = spec::JobField<std::int64_t>;

constexpr std::string_view kSmallerTraining =
    "smaller micro-batches in training: same result, more passes";
constexpr std::string_view kSmallerInference =
    "smaller micro-batches in inference: same result, more passes";
constexpr std::string_view kFewerDecoded =
    "fewer sequences decoded together: same result up to rounding, slower generation";
constexpr std::string_view kFewerPages =
    "fewer pages of the KV cache: same result up to rounding, slower generation if responses "
    "are long";
constexpr std::string_view kShorterPrefill =
    "fewer prompt tokens in a prefill pass: same result, slower prefill";
constexpr std::string_view kDividedToGenerate =
    "tensor parallelism during rollout: same result but for the order of sums";
constexpr std::string_view kRecomputed =
    "recompute layers in backward: same result, a third more compute in training";
constexpr std::string_view kRecomputedByPlan =
    "recompute activations that the plan chooses: same result";
constexpr std::string_view kNarrowStates = "optimizer moments in bfloat16: another training";
constexpr std::string_view kReferenceOnce =
    "the reference runs before the first step, not in each: same result";
constexpr std::string_view kAdapters =
    "train LoRA adapters instead of all weights: another training";
constexpr std::string_view kLooser = "allow more techniques: same result";
constexpr std::string_view kDivided = "optimizer offload by the plan: same result";
constexpr std::string_view kLeaves = "offload tags between the phases that need them: same result";
constexpr std::string_view kShorter = "shorter responses: another training";

constexpr int kAllHalvings = 62;
constexpr std::int64_t kAdapterRank = 16;
constexpr std::int64_t kShortestResponse = 8;
constexpr std::int64_t kShortestPrefill = 128;

constexpr std::array kTrainingSizes = {fields::kDataRows,   fields::kDataTokens,
                                       fields::kActorRows,  fields::kActorTokens,
                                       fields::kCriticRows, fields::kCriticTokens};
// If 0, another key applies.
constexpr std::array kInferenceRows = {fields::kLogProbRows, fields::kReferenceRows,
                                       fields::kRewardRows, fields::kValueRows};

// The largest divisor of `value` that is at most value / 2^halvings; micro-batches must divide.
std::int64_t shrink(std::int64_t value, int halvings) {
  std::int64_t d = std::max<std::int64_t>(1, value >> halvings);
  while (value % d != 0) --d;
  return d;
}

// A size of the job that can be reduced.
struct SizeNow {
  Size field;
  std::int64_t value = 0;
};

// Halves all sizes together; a level is a halving that changes at least one of them. Token budgets
// (`least` > 0) go down to the longest row of `least` tokens; other sizes go down to 1 and must
// divide.
Changes shrink_all(const std::vector<SizeNow>& sizes, std::int64_t least, int level) {
  const auto at = [&](std::int64_t value, int halvings) {
    return least > 0 ? std::min(value, std::max(least, value >> halvings))
                     : shrink(value, halvings);
  };
  const auto is_changed = [&](int from, int to) {
    return std::any_of(sizes.begin(), sizes.end(), [&](const SizeNow& size) {
      return at(size.value, to) != at(size.value, from);
    });
  };
  int halvings = 0;
  int reached = 0;
  for (; reached < level && halvings < kAllHalvings; ++halvings)
    if (is_changed(halvings, halvings + 1)) ++reached;
  Changes changes;
  if (reached < level) return changes;
  for (const auto& [field, value] : sizes) {
    if (const std::int64_t smaller = at(value, halvings); smaller != value)
      changes.emplace_back(field, smaller);
  }
  return changes;
}

std::vector<SizeNow> sizes_of(const spec::Job& job, const std::vector<Size>& list) {
  std::vector<SizeNow> out;
  for (const Size& field : list)
    if (field.of(job) > 0) out.push_back({field, field.of(job)});
  return out;
}

std::vector<Size> training_sizes(const spec::Job& job) {
  const bool packs = job.packs();
  if (!job.has_rollout()) return {packs ? fields::kDataTokens : fields::kDataRows};
  std::vector<Size> sizes = {packs ? fields::kActorTokens : fields::kActorRows};
  if (job.has_critic()) sizes.push_back(packs ? fields::kCriticTokens : fields::kCriticRows);
  return sizes;
}

std::vector<Size> inference_sizes(const spec::Job& job) {
  if (!job.generates()) return {};
  const auto& sizes = job.packs() ? fields::kScoringTokens : kInferenceRows;
  return {sizes.begin(), sizes.end()};
}

std::int64_t least_tokens(const spec::Job& job) {
  if (!job.packs()) return 0;
  std::int64_t ranks = job.context_ranks();
  for (const spec::ModelId model : job.models()) ranks = std::min(ranks, job.context_ranks(model));
  return spec::rows_of_each(job.max_sequence_length() * (job.has_pairs() ? 2 : 1), ranks);
}

Tunable reference_once() {
  return {kReferenceOnce, 1, true, [](const spec::Job& job, int level) -> Changes {
            const bool changes = level == 1 && job.task == spec::Task::kDpo &&
                                 !job.precomputes_reference() && !job.reference_is_actor_base();
            if (!changes) return {};
            return {{fields::kPrecomputeReference, true}};
          }};
}

Tunable more_offload() {
  return {kLeaves, 1, true, [](const spec::Job& job, int level) -> Changes {
            return level > 1 ? Changes() : free_residency(job);
          }};
}

Tunable free_updates() {
  return {kDivided, 1, true, [](const spec::Job& job, int level) -> Changes {
            if (level > 1 || job.memory.optimizer_offload.automatic) return {};
            return {{fields::kUpdate, spec::UpdateChoice()}};
          }};
}

// The measures that keep results bitwise identical, one more per level.
Tunable exact_measures() {
  return {kLooser, 1, true, [](const spec::Job& job, int level) -> Changes {
            std::vector<spec::Measure> missing;
            for (const spec::Measure measure :
                 {spec::Measure::kMove, spec::Measure::kStream, spec::Measure::kStreamWeights,
                  spec::Measure::kRecompute})
              if (!job.memory.allows(measure)) missing.push_back(measure);
            if (static_cast<std::size_t>(level) > missing.size()) return {};
            std::vector<spec::Measure> allow = job.memory.allow;
            allow.insert(allow.end(), missing.begin(), missing.begin() + level);
            return {{fields::kAllow, std::move(allow)}};
          }};
}

// The job's trained models with keys of their own for which `accepts` returns true.
template <class Accepts>
std::vector<spec::ModelId> configured_models(const spec::Job& job, const Accepts& accepts) {
  std::vector<spec::ModelId> out;
  const auto ask = [&](spec::ModelId id, const spec::ModelConfig& model, const std::string& path) {
    if (accepts(id, model, path)) out.push_back(id);
  };
  ask(job.main_model(), job.actor_model, job.actor_model.path);
  if (job.has_critic()) ask(spec::ModelId::kCritic, job.critic.model, job.critic_path());
  return out;
}

Tunable full_recomputation(const spec::Job& job) {
  const auto models =
      configured_models(job, [](spec::ModelId, const spec::ModelConfig& model, const std::string&) {
        return model.checkpoint_mode() != spec::CheckpointMode::kFull;
      });
  return {kRecomputed, 2, true, [models](const spec::Job&, int level) {
            Changes changes;
            if (level > 1) return changes;
            for (const spec::ModelId model : models)
              changes.emplace_back(fields::activation_checkpointing(model),
                                   spec::CheckpointMode::kFull);
            return changes;
          }};
}

// Adapters need weights to be added to. Only sft can start without weights. For other tasks, a
// folder without weights means that they are still to be downloaded.
bool takes_adapters(const spec::Job& job, spec::ModelId id, const std::string& path) {
  const Result<spec::ModelFiles> files = job.model_files(id, path);
  return files.ok() && (job.task != spec::Task::kSft || spec::has_weights(files->base));
}

Tunable adapters(const spec::Job& job) {
  const auto models = configured_models(
      job, [&](spec::ModelId id, const spec::ModelConfig& model, const std::string& path) {
        return model.lora.rank == 0 && takes_adapters(job, id, path);
      });
  return {kAdapters, 8, false, [models](const spec::Job&, int level) {
            Changes changes;
            if (level > 1) return changes;
            for (const spec::ModelId model : models)
              changes.emplace_back(fields::lora_rank(model), kAdapterRank);
            return changes;
          }};
}

Tunable shorter_responses() {
  return {kShorter, 6, false, [](const spec::Job& job, int level) -> Changes {
            const std::int64_t shorter = job.data.max_response_length >> level;
            if (shorter < kShortestResponse) return {};
            return {{fields::kResponseLength, shorter}};
          }};
}

}  // namespace

Changes free_residency(const spec::Job& job) {
  Changes out;
  if (job.residency() == spec::Residency::kAuto) return out;
  if (job.memory.offload != spec::Residency::kAuto)
    out.emplace_back(fields::kResidency, spec::Residency::kAuto);
  if (job.rollout.colocation == spec::Colocation::kResident)
    out.emplace_back(fields::kColocation, spec::Colocation::kStages);
  return out;
}

Tunable training_micro_batches() {
  return {kSmallerTraining, 1, true, [](const spec::Job& job, int level) {
            return shrink_all(sizes_of(job, training_sizes(job)), least_tokens(job), level);
          }};
}

Tunable inference_micro_batches() {
  return {kSmallerInference, 1, true, [](const spec::Job& job, int level) {
            return shrink_all(sizes_of(job, inference_sizes(job)), least_tokens(job), level);
          }};
}

Tunable rollout_batches() {
  return {kFewerDecoded, 1, true, [](const spec::Job& job, int level) -> Changes {
            if (!job.generates()) return {};
            // 0 means the whole batch. Any number will do, as other sequences follow.
            return shrink_all({{fields::kRolloutBatch, job.rollout_batch()}}, 1, level);
          }};
}

Tunable cache_pages() {
  return {kFewerPages, 1, true, [](const spec::Job& job, int level) -> Changes {
            // Pages change the order of sums.
            if (!job.generates() || job.trainer.deterministic) return {};
            const step::CacheShape now = step::cache_shape(job);
            const std::int64_t all = now.tokens() / step::kPageTokens;
            const auto at = [&](int halvings) {
              return std::max(now.row_pages(), all >> std::min(halvings, kAllHalvings));
            };
            if (level > 1 && at(level) == at(level - 1)) return {};
            spec::Job changed = job;
            changed.rollout.max_total_tokens = at(level) * step::kPageTokens;
            if (step::cache_shape(changed).tokens() >= now.tokens()) return {};
            return {{fields::kCacheTokens, changed.rollout.max_total_tokens}};
          }};
}

Tunable prefill_passes() {
  return {kShorterPrefill, 1, true, [](const spec::Job& job, int level) -> Changes {
            if (!job.generates() || !job.rollout.enable_chunked_prefill) return {};
            const std::int64_t tokens = job.prefill().of_pass() >> level;
            if (tokens < kShortestPrefill) return {};
            return {{fields::kPrefillTokens, tokens}};
          }};
}

Tunable divided_generation() {
  return {kDividedToGenerate, 1, true, [](const spec::Job& job, int level) -> Changes {
            // A rollout shard saves nothing if the rank has whole weights anyway.
            if (!job.generates()) return {};
            if (!job.data_parallel().slices_weights() && job.mesh().size(spec::Axis::kPipe) == 1)
              return {};
            spec::Job changed = job;
            std::int64_t& size = changed.rollout.tensor_model_parallel_size;
            size = job.generation_mesh().size(spec::Axis::kTensor);
            for (int found = 0; found < level;) {
              if (++size > job.ranks()) return {};
              if (changed.has_generation_placement() && spec::check_ranks(changed).ok()) ++found;
            }
            return {{fields::kRolloutTensorRanks, size}};
          }};
}

std::vector<Tunable> tunables(const spec::Job& job) {
  std::vector<Tunable> list = {more_offload(),
                               free_updates(),
                               exact_measures(),
                               training_micro_batches(),
                               inference_micro_batches(),
                               rollout_batches(),
                               cache_pages(),
                               divided_generation(),
                               reference_once(),
                               full_recomputation(job)};
  for (Tunable& tunable : other_trainings(job)) list.push_back(std::move(tunable));
  return list;
}

std::vector<Tunable> other_trainings(const spec::Job& job) {
  return {adapters(job), shorter_responses()};
}

std::string_view effect_of(const spec::JobChange& change) {
  const auto is_of = [&](const auto& field) { return change.value_of(field) != nullptr; };
  const auto is_of_any = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), is_of);
  };
  if (is_of_any(kTrainingSizes)) return kSmallerTraining;
  if (is_of_any(kInferenceRows) || is_of_any(fields::kScoringTokens)) return kSmallerInference;
  if (is_of(fields::kRolloutBatch)) return kFewerDecoded;
  if (is_of(fields::kCacheTokens)) return kFewerPages;
  if (is_of(fields::kPrefillTokens)) return kShorterPrefill;
  if (is_of(fields::kRolloutTensorRanks)) return kDividedToGenerate;
  if (is_of(fields::kResidency) || is_of(fields::kColocation)) return kLeaves;
  if (is_of(fields::kUpdate)) return kDivided;
  if (is_of(fields::kAllow)) return kLooser;
  if (is_of(fields::kPrecomputeReference)) return kReferenceOnce;
  if (is_of(fields::kResponseLength)) return kShorter;
  for (const spec::ModelId model : {spec::ModelId::kActor, spec::ModelId::kCritic}) {
    if (is_of(fields::lora_rank(model))) return kAdapters;
    if (is_of(fields::state_dtype(model))) return kNarrowStates;
    if (const auto* mode = change.value_of(fields::activation_checkpointing(model)))
      return *mode == spec::CheckpointMode::kFull ? kRecomputed : kRecomputedByPlan;
  }
  return {};
}

}  // namespace neap::plan
