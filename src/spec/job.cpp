#include "spec/job.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "spec/adapter_config.h"
#include "spec/context_parallel.h"
#include "spec/default_lengths.h"
#include "spec/degrees.h"
#include "spec/micro_batches.h"
#include "spec/optimizer.h"
#include "spec/parallel_checks.h"
#include "spec/presets.h"
#include "spec/wrong.h"

namespace neap::spec {
namespace {

constexpr std::array<std::string_view, 5> kLoggers = {"console", "jsonl", "tensorboard", "wandb",
                                                      "mlflow"};

Status divides(std::string_view small_key, std::int64_t small, std::string_view large_key,
               std::int64_t large) {
  if (small >= 1 && large % small == 0) return {};
  return wrong(format("{} {} does not divide {} {}", small_key, small, large_key, large));
}

bool valid_resume_mode(const std::string& mode) {
  // A single word that is neither keyword is a typo, not a folder.
  return mode == "auto" || mode == "disable" || mode.find('/') != std::string::npos;
}

Status validate_lora(const std::string& at, const ModelConfig& m) {
  if (m.lora.rank > 0 && m.lora.modules.empty() && m.lora.targets.empty())
    return wrong(at + ".lora_rank is set but " + at + ".target_modules is empty");
  return {};
}

// The shape of the adapter that training continues, in place of the keys.
Status read_adapter(const Job& job, const ConfigTable& table, const std::string& at,
                    const std::string& base, ModelId id, ModelConfig& m) {
  if (m.lora_adapter_path.empty()) return {};
  const std::filesystem::path folder = job.resolve(m.lora_adapter_path);
  NEAP_TRY_ASSIGN(const ModelFiles files, job.model_files(id, base));
  std::error_code ignored;
  if (!files.adapter.empty() && std::filesystem::equivalent(files.adapter, folder, ignored))
    return wrong(
        format("{0}.lora_adapter_path and {0}.path both give the adapter in {1}, which would be "
               "added twice; give the model without it as {0}.path",
               at, folder.string()));
  NEAP_TRY_ASSIGN(const Architecture model, Architecture::from_folder(files.base));
  NEAP_TRY_ASSIGN(AdapterConfig config, AdapterConfig::from_folder(folder, model));
  const std::string where = (folder / kAdapterConfig).string();
  NEAP_TRY(config.check_trainable(where, model));
  const auto is_other = [&](const char* key, bool differs) {
    return differs && table.find(at + key)->is_set;
  };
  if (is_other(".lora_rank", m.lora.rank != config.lora.rank) ||
      is_other(".lora_alpha", m.lora.alpha != config.lora.alpha))
    return wrong(format("{} has r {} and lora_alpha {}; leave {}.lora_rank and {}.lora_alpha out",
                        where, config.lora.rank, config.lora.alpha, at, at));
  if (table.find(at + ".target_modules")->is_set)
    return wrong(
        format("{}.target_modules is set, but the adapter in {} has its own layers; leave "
               "it out",
               at, folder.string()));
  m.lora = std::move(config.lora);
  return {};
}

Status validate_checkpointing(const std::string& at, const ModelConfig& m) {
  const CheckpointMode mode = m.activation_checkpointing;
  if (!m.enable_gradient_checkpointing || mode == CheckpointMode::kFull ||
      mode == ModelConfig().activation_checkpointing)
    return {};
  return wrong(
      format("{}.enable_gradient_checkpointing = true means {}.activation_checkpointing = "
             "\"full\", which is \"{}\"; leave one of them out",
             at, at, to_string(mode)));
}

Status validate_losses(const Job& job) {
  if (job.dpo.loss_type == PreferenceLoss::kRobust && job.dpo.label_smoothing >= 0.5) {
    return wrong(
        format("dpo.label_smoothing {} is too large for loss \"robust\", which divides by 1 - 2 x "
               "label_smoothing; take less than 0.5",
               job.dpo.label_smoothing));
  }
  if (job.actor.loss_mode == PolicyLoss::kDro && job.actor.dro_beta <= 0) {
    return wrong(
        "actor_rollout_ref.actor.policy_loss.dro_beta is 0; loss \"dro\" needs it above 0");
  }
  if (job.actor.clip_ratio_c != 0 && job.actor.clip_ratio_c < 1) {
    return wrong(
        format("actor_rollout_ref.actor.clip_ratio_c is {}; it can be 0 (no dual clip) or "
               "at least 1",
               job.actor.clip_ratio_c));
  }
  return {};
}

// Of a job with a rollout.
Status validate_advantages(const Job& job) {
  const bool gae = job.algorithm.adv_estimator == AdvantageEstimator::kGae;
  if (gae != job.has_critic()) {
    return wrong(format("algorithm.adv_estimator \"{}\" does not go with task \"{}\"; take \"{}\"",
                        to_string(job.algorithm.adv_estimator), to_string(job.task),
                        job.has_critic() ? "gae" : "grpo"));
  }
  if (compares_responses(job.algorithm.adv_estimator) && job.rollout.n < 2) {
    return wrong(
        format("actor_rollout_ref.rollout.n is 1; {} compares at least 2 responses to a "
               "prompt",
               to_string(job.algorithm.adv_estimator)));
  }
  if (job.algorithm.filter_groups.enable && job.rollout.n < 2) {
    return wrong(
        "algorithm.filter_groups.enable needs actor_rollout_ref.rollout.n of at least 2: it drops "
        "prompts whose responses all have the same score");
  }
  if (job.algorithm.filter_groups.metric == "acc" && job.reward.functions.empty()) {
    return wrong(
        "algorithm.filter_groups.metric is \"acc\", which [[reward.functions]] tell; there are "
        "none");
  }
  if (job.algorithm.rollout_correction.weighs())
    NEAP_TRY(importance_weights(job.algorithm.rollout_correction).status());
  NEAP_TRY(rejection_rules(job.algorithm.rollout_correction).status());
  if (job.algorithm.rollout_correction.bypass_mode && job.actor.loss_mode != PolicyLoss::kVanilla)
    return wrong(
        format("algorithm.rollout_correction.bypass_mode has the losses of its loss_type, not "
               "policy_loss.loss_mode \"{}\"",
               to_string(job.actor.loss_mode)));
  return {};
}

constexpr std::string_view kActorOptimizer = "actor_rollout_ref.actor.optim";
constexpr std::string_view kCriticOptimizer = "critic.optim";

Status validate_optimizer(std::string_view at, const OptimizerConfig& o, const DeviceConfig& d) {
  const Dtype weights = d.dtype == "float32" ? Dtype::kFloat32 : Dtype::kBfloat16;
  const Result<OptimizerSpec> spec = OptimizerSpec::of(o, weights);
  if (!spec.ok()) return Status(spec.status()).with_context(format("checking {}", at));
  if (o.nesterov && o.momentum == 0)
    return wrong(format("{}.nesterov is true, but {}.momentum is 0", at, at));
  if (spec->kind == OptimizerKind::kSgd && !spec->momentum && o.state_dtype != Dtype::kFloat32)
    return wrong(format("{}.state_dtype is \"{}\", but sgd without momentum keeps no state", at,
                        to_string(o.state_dtype)));
  return {};
}

Status validate_validation(const Job& job) {
  const ValidationSampling& v = job.rollout.val_kwargs;
  const std::string at = "actor_rollout_ref.rollout.val_kwargs";
  if (v.n > 1 && (!v.do_sample || v.temperature == 0))
    return wrong(
        format("{}.n is {}, but greedy responses to a prompt are all the same; set {}.do_sample = "
               "true and a temperature above 0",
               at, v.n, at));
  for (const auto& [key, metric] : {std::pair{"best_metric", &job.trainer.best_metric},
                                    std::pair{"stop_metric", &job.trainer.stop_metric}}) {
    if (!metric->empty() && job.data.val_files.empty())
      return wrong(format("trainer.{} is set, but data.val_files is empty", key));
  }
  if (!job.trainer.stop_metric.empty() && job.trainer.test_freq < 1)
    return wrong(
        format("trainer.stop_metric is set, but trainer.test_freq is {}: nothing is validated "
               "before the last step",
               job.trainer.test_freq));
  return {};
}

Status validate_rollout(const Job& job) {
  const RolloutConfig& r = job.rollout;
  if (!job.trains_policy() || r.enable_chunked_prefill ||
      r.max_num_batched_tokens >= job.data.max_prompt_length)
    return {};
  return wrong(format(
      "actor_rollout_ref.rollout.max_num_batched_tokens is {}, but prompts may have {} tokens "
      "(data.max_prompt_length); raise it or set enable_chunked_prefill = true",
      r.max_num_batched_tokens, job.data.max_prompt_length));
}

Status validate_rewards(const Job& job) {
  for (std::size_t i = 0; i < job.reward.functions.size(); ++i) {
    const std::vector<std::string>& command = job.reward.functions[i].command;
    std::error_code ignored;
    if (command.size() != 1 || command[0].find(' ') == std::string::npos ||
        std::filesystem::exists(job.resolve(command[0]), ignored))
      continue;
    std::string words = command[0];
    for (auto at = words.find(' '); at != std::string::npos; at = words.find(' ', at + 4))
      words.replace(at, 1, "\", \"");
    return wrong(
        format("reward.functions.{}.command is one word, \"{}\", and no such program is "
               "there; give the program and its arguments as a list: [\"{}\"]",
               i, command[0], words));
  }
  // An evaluation without a rule takes the one that the rows' answers ask for.
  if (!job.trains_policy() || job.has_reward_model() || !job.reward.functions.empty()) return {};
  return wrong(
      format("{} needs rewards: set reward_model.model.path, or add [[reward.functions]] "
             "(docs/rewards.md)",
             to_string(job.task)));
}

// Of a job that packs: the longest row fits into every budget.
Status validate_packing(const Job& job) {
  const std::int64_t longest = job.max_sequence_length();
  const auto holds = [&](const char* key, std::int64_t tokens, std::int64_t sequences) -> Status {
    const std::int64_t ranks = job.context_ranks();
    const std::int64_t least = rows_of_each(sequences * longest, ranks);
    if (tokens == 0 || tokens >= least) return {};
    return wrong(
        format("{} is {}; it has to be at least {}: {}data.max_prompt_length {} + "
               "data.max_response_length {}{}",
               key, tokens, least, sequences > 1 ? "2 x of a pair, " : "",
               job.data.max_prompt_length, job.data.max_response_length,
               ranks > 1 ? format(", divided by {} ranks", ranks) : std::string()));
  };
  NEAP_TRY(holds("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
                 job.reference_max_token_len_per_gpu, 1));
  if (!job.has_rollout())
    return holds("data.max_token_len_per_gpu", job.data.max_token_len_per_gpu,
                 job.has_pairs() ? 2 : 1);
  NEAP_TRY(holds("actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                 job.actor.ppo_max_token_len_per_gpu, 1));
  NEAP_TRY(holds("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
                 job.rollout.log_prob_max_token_len_per_gpu, 1));
  NEAP_TRY(
      holds("reward_model.forward_max_token_len_per_gpu", job.reward_max_token_len_per_gpu, 1));
  if (!job.has_critic()) return {};
  NEAP_TRY(holds("critic.ppo_max_token_len_per_gpu", job.critic.ppo_max_token_len_per_gpu, 1));
  return holds("critic.forward_max_token_len_per_gpu", job.critic.forward_max_token_len_per_gpu, 1);
}

// Of a job that nobody divides.
std::optional<std::string> note_on_defaults(const AutomaticDegrees& automatic) {
  std::vector<std::string> paths;
  for (const DegreeKey& key : kDegreeKeys)
    if (automatic.*key.automatic) paths.emplace_back(key.path);
  if (paths.empty()) return std::nullopt;
  return format("What is \"auto\" has its default here: {}. `neap train` and `neap plan` choose it",
                joined(paths, ", "));
}

}  // namespace

Status Job::load(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                 Job& job, OpenDegrees open) {
  ConfigTable table = job.bind();
  if (!file.empty()) NEAP_TRY(table.load_file(file));
  // `neap eval` takes the file of a training, most of which it does not read.
  const bool is_of_training = job.task != Task::kEval;
  job.folder = file.parent_path();
  for (const std::string& text : overrides) NEAP_TRY(table.apply_override(text));
  if (job.task == Task::kEval) open = OpenDegrees::kNone;
  const std::optional<std::string> defaults =
      open == OpenDegrees::kNone ? note_on_defaults(job.parallel.automatic) : std::nullopt;
  open_degrees(open, table, job.parallel);
  if (job.parallel.automatic.any()) return {};
  const auto is_set = [&](std::string_view key) { return table.find(key)->is_set; };
  NEAP_TRY(table.apply_defaults());
  NEAP_TRY(apply_preset(table, job.algorithm.preset, job.task, job.algorithm.adv_estimator));
  if (is_set("actor_rollout_ref.actor.clip_ratio")) {
    if (!is_set("actor_rollout_ref.actor.clip_ratio_low"))
      job.actor.clip_ratio_low = job.actor.clip_ratio;
    if (!is_set("actor_rollout_ref.actor.clip_ratio_high"))
      job.actor.clip_ratio_high = job.actor.clip_ratio;
  }
  const ConfigTable::Key& stop_metric = *table.find("trainer.stop_metric");
  const bool taken_back = !stop_metric.is_set && !stop_metric.origin.empty();
  if (job.task != Task::kEval && !taken_back && stop_metric.is_set && !is_set("trainer.stop_value"))
    return wrong("trainer.stop_metric is set without trainer.stop_value, which ends the training");
  NEAP_TRY(job.reward.validate(table));
  NEAP_TRY(job.read_adapters(table));
  NEAP_TRY_ASSIGN(job.warnings, table.unread([&](const std::string& origin) {
    return job.task == Task::kEval && is_of_training && !origin.starts_with('"');
  }));
  if (defaults) job.warnings.push_back(*defaults);
  NEAP_TRY_ASSIGN(job.adapted, adapt_lengths(table, job));
  NEAP_TRY_ASSIGN(const auto micro_batches, adapt_micro_batches(table, job));
  job.adapted.insert(job.adapted.end(), micro_batches.begin(), micro_batches.end());
  const Status valid = job.validate();
  return file.empty() ? valid : Status(valid).with_context(format("checking {}", file.string()));
}

// Of the models that the task trains; `neap eval` merges the actor's.
Status Job::read_adapters(const ConfigTable& table) {
  if (task == Task::kEval) return {};
  NEAP_TRY(read_adapter(*this, table, "actor_rollout_ref.model", actor_model.path, main_model(),
                        actor_model));
  if (!has_critic()) return {};
  return read_adapter(*this, table, "critic.model", critic_path(), ModelId::kCritic, critic.model);
}

bool MemoryConfig::allows(Measure measure) const {
  return std::find(allow.begin(), allow.end(), measure) != allow.end();
}

Status Job::validate() const {
  if (actor_model.path.empty())
    return wrong(
        "actor_rollout_ref.model.path is missing: the folder with the model's config.json");
  // A plan needs no rows.
  if (launched_ranks > 0 && task != Task::kEval && data.train_files.empty())
    return wrong(
        "data.train_files is empty: name the files to train on, as data.train_files = "
        "[\"train.jsonl\"]");
  NEAP_TRY(validate_lora("actor_rollout_ref.model", actor_model));
  NEAP_TRY(validate_lora("critic.model", critic.model));
  NEAP_TRY(validate_checkpointing("actor_rollout_ref.model", actor_model));
  NEAP_TRY(validate_checkpointing("critic.model", critic.model));
  NEAP_TRY(validate_optimizer(kActorOptimizer, actor.optim, device));
  NEAP_TRY(validate_optimizer(kCriticOptimizer, critic.optim, device));
  NEAP_TRY(check_ranks(*this));
  // Every shard is an open file while it is written.
  if (trainer.max_shard_size < Bytes(1'000'000))
    return wrong(format("trainer.max_shard_size is {}; the least is 1 MB", trainer.max_shard_size));
  if (!memory.update.automatic && memory.update.mode == UpdateMode::kStreamed &&
      !memory.allows(Measure::kStream))
    return wrong("memory.update is \"streamed\", but memory.allow does not hold \"stream\"");
  if (!valid_resume_mode(trainer.resume_mode)) {
    return wrong(
        format("trainer.resume_mode is \"{}\"; it can be \"auto\", \"disable\" or the path "
               "of a checkpoint folder (with a /)",
               trainer.resume_mode));
  }
  for (const std::string& sink : trainer.logger) {
    if (std::find(kLoggers.begin(), kLoggers.end(), sink) == kLoggers.end())
      return wrong(
          format("trainer.logger has \"{}\"; it can hold \"console\", \"jsonl\", "
                 "\"tensorboard\", \"wandb\", \"mlflow\"",
                 sink));
  }
  NEAP_TRY(validate_data(data));
  NEAP_TRY(validate_rewards(*this));
  NEAP_TRY(validate_validation(*this));
  NEAP_TRY(validate_rollout(*this));
  NEAP_TRY(validate_losses(*this));
  if (packs()) NEAP_TRY(validate_packing(*this));
  if (trains_policy()) {
    NEAP_TRY(validate_advantages(*this));
    NEAP_TRY(divides("actor_rollout_ref.actor.ppo_mini_batch_size", actor_mini_batch(),
                     "data.train_batch_size", data.train_batch_size));
    if (has_critic())
      NEAP_TRY(divides("critic.ppo_mini_batch_size", critic_mini_batch(), "data.train_batch_size",
                       data.train_batch_size));
  }
  for (const BatchDivision& division : batch_divisions(*this)) NEAP_TRY(check_division(division));
  return {};
}

std::filesystem::path Job::resolve(const std::string& path) const {
  const std::filesystem::path p(path);
  return p.is_absolute() || p.empty() ? p : folder / p;
}

std::filesystem::path Job::output_folder() const {
  const std::string& given = trainer.default_local_dir;
  return resolve(given.empty() ? format("output/{}", to_string(task)) : given).lexically_normal();
}

Result<ModelFiles> Job::model_files(ModelId model, const std::string& path,
                                    const std::string& adapter) const {
  // The folder's own models first: a critic may start as a reward or a language model.
  const auto in = [&](std::initializer_list<ModelId> models) {
    return find_model_folder(resolve(path), models);
  };
  constexpr ModelId kActor = ModelId::kActor, kReward = ModelId::kReward;
  constexpr ModelId kCritic = ModelId::kCritic;
  const std::filesystem::path found = model == kCritic   ? in({kCritic, kReward, kActor})
                                      : model == kReward ? in({kReward, kCritic, kActor})
                                                         : in({kActor, kReward, kCritic});
  NEAP_TRY_ASSIGN(ModelFiles files, find_model(found));
  if (!adapter.empty()) files.adapter = resolve(adapter);
  return files;
}

bool Job::uses_reference() const {
  return task == Task::kDpo ||
         (trains_policy() && (algorithm.use_kl_in_reward || actor.use_kl_loss));
}
bool Job::reference_is_actor_base() const {
  // What runs once comes before the actor's weights are there.
  return uses_reference() && !precomputes_reference() && actor_model.lora.rank > 0 &&
         (reference_model.path.empty() || reference_model.path == actor_model.path);
}
const std::string& Job::reference_path() const {
  return reference_model.path.empty() ? actor_model.path : reference_model.path;
}
const std::string& Job::critic_path() const {
  if (!critic.model.path.empty()) return critic.model.path;
  return has_reward_model() ? reward_model.path : actor_model.path;
}
bool Job::starts_critic_head() const {
  return critic.init_head || (critic.model.path.empty() && !has_reward_model());
}
std::int64_t Job::actor_mini_batch() const {
  return actor.ppo_mini_batch_size != 0 ? actor.ppo_mini_batch_size : data.train_batch_size;
}
std::int64_t Job::critic_mini_batch() const {
  return critic.ppo_mini_batch_size != 0 ? critic.ppo_mini_batch_size : actor_mini_batch();
}
std::int64_t Job::sequences_per_row() const {
  if (has_rollout()) return rollout.n;
  return has_pairs() ? 2 : 1;
}
std::int64_t Job::sequences_per_step() const {
  return data.train_batch_size * sequences_per_row();
}
std::int64_t Job::ranks() const {
  if (launched_ranks > 0) return launched_ranks;
  return std::max<std::int64_t>(1, trainer.nnodes) *
         std::max<std::int64_t>(1, trainer.n_gpus_per_node);
}
Mesh Job::mesh() const {
  const std::int64_t tensor = parallel.tensor_model_parallel_size;
  // Evaluation does not read these keys.
  const bool trains = task != Task::kEval;
  const std::int64_t stages = trains ? parallel.pipeline_model_parallel_size : 1;
  const std::int64_t context = trains ? parallel.context_parallel_size : 1;
  return Mesh()
      .set(Axis::kPipe, stages)
      .set(Axis::kContext, context)
      .set(Axis::kTensor, tensor)
      .set(Axis::kData, std::max<std::int64_t>(1, ranks() / (stages * context * tensor)));
}
Mesh Job::generation_mesh() const {
  const Mesh arranged = mesh();
  if (!trains_policy()) return arranged;
  const std::int64_t trained = arranged.size(Axis::kTensor);
  const std::int64_t tensor =
      rollout.tensor_model_parallel_size != 0 ? rollout.tensor_model_parallel_size : trained;
  if (tensor == trained && arranged.size(Axis::kPipe) == 1) return arranged;
  return Mesh()
      .set(Axis::kTensor, tensor)
      .set(Axis::kData, std::max<std::int64_t>(1, ranks() / tensor));
}
std::int64_t Job::rows_per_rank() const {
  return data.train_batch_size / data_ranks();
}
std::int64_t Job::sequences_per_rank() const {
  return sequences_per_step() / data_ranks();
}
std::int64_t Job::prompts_per_rank() const {
  return data.train_batch_size / generating_ranks();
}
std::int64_t Job::responses_per_rank() const {
  return sequences_per_step() / generating_ranks();
}
std::int64_t Job::rollout_batch() const {
  const std::int64_t all = responses_per_rank();
  return rollout.batch_size == 0 ? all : std::min(rollout.batch_size, all);
}
PrefillShape Job::prefill() const {
  const std::int64_t prompts = (rollout_batch() + rollout.n - 1) / rollout.n;
  const std::int64_t longest = data.max_prompt_length;
  // Without chunks a prompt is one pass, however long.
  const std::int64_t budget = rollout.enable_chunked_prefill
                                  ? rollout.max_num_batched_tokens
                                  : std::max(rollout.max_num_batched_tokens, longest);
  return prefill_shape(prompts, longest, budget);
}
std::int64_t Job::reference_micro_batch() const {
  if (reference_micro_batch_size_per_gpu != 0) return reference_micro_batch_size_per_gpu;
  return has_rollout() ? rollout.log_prob_micro_batch_size_per_gpu
                       : data.micro_batch_size_per_gpu * sequences_per_row();
}
std::int64_t Job::reward_micro_batch() const {
  return reward_micro_batch_size_per_gpu != 0 ? reward_micro_batch_size_per_gpu
                                              : rollout.log_prob_micro_batch_size_per_gpu;
}
std::int64_t Job::values_micro_batch() const {
  return critic.forward_micro_batch_size_per_gpu != 0 ? critic.forward_micro_batch_size_per_gpu
                                                      : critic.ppo_micro_batch_size_per_gpu;
}
std::int64_t Job::loss_scale_factor() const {
  return actor.loss_scale_factor != 0 ? actor.loss_scale_factor : data.max_response_length;
}
std::int64_t Job::max_sequence_length() const {
  return data.max_prompt_length + data.max_response_length;
}

}  // namespace neap::spec
