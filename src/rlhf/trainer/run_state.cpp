#include "rlhf/trainer/run_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/text.h"
#include "data/content_hash.h"
#include "data/row_cache.h"
#include "train/checkpoint_files.h"

namespace neap::rlhf {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStateFile = "trainer.json";

Json config_json(const spec::Job& job) {
  spec::Job copy = job;
  return copy.bind().to_json();
}

Json::json_pointer pointer_to(std::string path) {
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer("/" + path);
}

// Keys about locations and output formats; they do not change the training.
constexpr std::array kOutsideTraining = {"actor_rollout_ref.actor.zero_stage",
                                         "actor_rollout_ref.actor.zero_shard_size",
                                         "actor_rollout_ref.actor.tensor_model_parallel_size",
                                         "actor_rollout_ref.actor.context_parallel_size",
                                         "actor_rollout_ref.ref.zero_stage",
                                         "actor_rollout_ref.ref.zero_shard_size",
                                         "actor_rollout_ref.ref.tensor_model_parallel_size",
                                         "actor_rollout_ref.ref.context_parallel_size",
                                         "actor_rollout_ref.nccl_timeout",
                                         "critic.zero_stage",
                                         "critic.zero_shard_size",
                                         "critic.tensor_model_parallel_size",
                                         "critic.context_parallel_size",
                                         "data.cache_dir",
                                         "data.cache_limit",
                                         "data.rows_in_memory",
                                         "device.ordinal",
                                         "parallel",
                                         "reward_model.zero_stage",
                                         "reward_model.zero_shard_size",
                                         "reward_model.tensor_model_parallel_size",
                                         "reward_model.context_parallel_size",
                                         "trainer.async_save",
                                         "trainer.default_local_dir",
                                         "trainer.experiment_name",
                                         "trainer.logger",
                                         "trainer.project_name",
                                         "trainer.max_ckpt_to_keep",
                                         "trainer.max_shard_size",
                                         "trainer.resume_mode",
                                         "trainer.rollout_freq",
                                         "trainer.rollout_max_size",
                                         "trainer.rollout_samples",
                                         "trainer.rollout_token_ids",
                                         "trainer.save_freq",
                                         "trainer.trace_max_size",
                                         "trainer.save_lora_base",
                                         "trainer.val_samples"};

// More keys in which a finished run may differ: its length, its logs, and the device.
constexpr std::array kOutsideResult = {"device.kind",
                                       "device.memory",
                                       "memory",
                                       "trainer.best_metric",
                                       "trainer.best_mode",
                                       "trainer.stop_metric",
                                       "trainer.stop_mode",
                                       "trainer.stop_value",
                                       "trainer.test_freq",
                                       "trainer.total_epochs",
                                       "trainer.total_training_steps"};

void erase(Json& config, std::span<const char* const> paths) {
  for (const char* path : paths) {
    const Json::json_pointer at = pointer_to(path);
    if (config.contains(at)) config.at(at.parent_pointer()).erase(at.back());
  }
}

// Lists "key: was 1, is 2" for the checkpoint's training and the job's.
std::vector<std::string> differences(const Json& state, const spec::Job& job) {
  if (!state.contains("config")) return {};
  Json now = config_json(job);
  erase(now, kOutsideTraining);
  return config_differences(state["config"], now);
}

// A model that a job loads from a folder.
struct NamedModel {
  spec::ModelId id = spec::ModelId::kActor;
  std::string key;
  std::string path;
  const spec::ModelConfig* config = nullptr;
  bool trained = false;
};

std::vector<NamedModel> models_of(const spec::Job& job) {
  using spec::ModelId;
  std::vector<NamedModel> out = {
      {job.main_model(), "actor_rollout_ref.model", job.actor_model.path, &job.actor_model, true}};
  if (job.uses_reference() && !job.reference_model.path.empty() && !job.reads_experience())
    out.push_back({ModelId::kReference, "actor_rollout_ref.ref.model", job.reference_path(),
                   &job.reference_model});
  if (job.has_reward_model() && !job.reads_experience())
    out.push_back(
        {ModelId::kReward, "reward_model.model", job.reward_model.path, &job.reward_model});
  if (job.has_critic())
    out.push_back({ModelId::kCritic, "critic.model", job.critic_path(), &job.critic.model, true});
  return out;
}

// Lists "KEY.path: the folder has other contents".
std::vector<std::string> model_differences(const Json& state, const Json& identity) {
  std::vector<std::string> out;
  const Json saved = state.value("models", Json::object());
  for (const auto& [key, fingerprint] : identity["models"].items()) {
    if (saved.contains(key) && saved[key] != fingerprint)
      out.push_back(format("{}.path: the model has other contents", key));
  }
  return out;
}

// Null if the files are missing, or cannot be read twice (a pipe).
Json contents_of(const spec::Job& job, const std::vector<std::string>& files) {
  Json out = Json::array();
  for (const std::string& name : files) {
    std::error_code error;
    const fs::path file = job.resolve(name);
    if (!fs::is_regular_file(file, error)) return nullptr;
    const Result<fs::path> cache = data::make_cache_folder(job.resolve(job.data.cache_dir));
    Result<std::string> hash =
        cache.ok() ? data::content_hash(*cache, file) : data::hash_of_file(file);
    if (!hash.ok()) return nullptr;
    out.push_back(*std::move(hash));
  }
  return out;
}

bool is_whole(const train::FoundCheckpoint& checkpoint) {
  try {
    check_whole(checkpoint.folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Json read_run_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kStateFile;
  Json state = value_or_throw(
      parse_json(value_or_throw(read_file(file, read_limits::kRunState)), file.string()));
  const auto absent_or = [&](const char* key, bool (Json::*is)() const noexcept) {
    return !state.contains(key) || (state[key].*is)();
  };
  if (!state.is_object() || !absent_or("task", &Json::is_string) ||
      !absent_or("config", &Json::is_object) || !absent_or("run", &Json::is_string) ||
      !absent_or("rows", &Json::is_number_unsigned) ||
      !absent_or("ranks", &Json::is_number_unsigned) || !absent_or("best", &Json::is_object) ||
      !absent_or("stop", &Json::is_object)) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is not the state of a training run", file.string()));
  }
  return state;
}

void check_whole(const fs::path& checkpoint) {
  train::check_files(checkpoint);
  (void)read_run_state(checkpoint);
}

Json identity_of(const spec::Job& job, const weights::OpenFolders& folders) {
  Json models = Json::object();
  for (const NamedModel& model : models_of(job)) {
    const Result<spec::ModelFiles> files = job.model_files(model.id, model.path);
    std::error_code error;
    // A missing model is reported where it is needed.
    if (files.ok() && fs::exists(files->base / "config.json", error))
      models[model.key] = folders.fingerprint(*files);
  }
  std::random_device random;
  const std::uint64_t run = std::uint64_t{random()} << 32 | random();
  return {
      {"config", config_json(job)}, {"models", std::move(models)}, {"run", format("{:016x}", run)}};
}

std::optional<bool> is_of_run(const fs::path& checkpoint, const Json& identity,
                              const Json& resumed) {
  const std::string run = identity.value("run", "");
  // Older versions gave runs no name, so their checkpoints cannot be told apart.
  const bool was_unnamed = resumed.is_object() && !resumed.contains("run");
  try {
    return read_run_state(checkpoint).value("run", was_unnamed ? run : "") == run;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_run_state(const fs::path& checkpoint, std::int64_t step, const spec::Job& job,
                     const Json& identity, const Rows& rows, const BestCheckpoint& best,
                     const StopTarget& stop) {
  Json state = Json::object();
  state["schema"] = 1;
  state["task"] = to_string(job.task);
  state["ranks"] = job.ranks();
  state["step"] = step;
  state["rows"] = rows.size();
  state["data"] = rows.files().contents();
  state["config"] = config_json(job);
  state["asked"] = identity["config"];
  state["models"] = identity["models"];
  state["run"] = identity["run"];
  if (const Json values = best.to_json(); !values.is_null()) state["best"] = values;
  if (const Json last = stop.to_json(); !last.is_null()) state["stop"] = last;
  throw_if_error(write_file_atomic(checkpoint / kStateFile, json_text(state, 1) + "\n"));
}

void check_task(const Json& state, const fs::path& checkpoint, const spec::Job& job) {
  const std::string task = state.value("task", "");
  if (task == to_string(job.task)) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{} is a checkpoint of task \"{}\", not of task \"{}\". Set "
                     "trainer.default_local_dir to another folder",
                     checkpoint.string(), task, to_string(job.task)));
}

void check_finished(const Json& state, const train::FoundCheckpoint& found, const spec::Job& job,
                    const Json& identity) {
  std::vector<std::string> lines;
  if (Json asked = state.value("asked", Json()); asked.is_object()) {
    Json now = identity["config"];
    for (Json* config : {&asked, &now}) {
      erase(*config, kOutsideTraining);
      erase(*config, kOutsideResult);
    }
    lines = config_differences(asked, now);
  }
  for (std::string& line : model_differences(state, identity)) lines.push_back(std::move(line));
  const Json trained = state.value("data", Json());
  const Json rows = job.reads_experience() ? trained : contents_of(job, job.data.train_files);
  if (lines.empty() && trained.is_array() && rows.is_array() && trained != rows)
    lines.emplace_back("data.train_files: the files have other contents");
  if (lines.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              format("{} holds a finished run (step {}) that is not this one: {}. Set "
                     "trainer.default_local_dir to another folder to train this one",
                     found.folder.parent_path().string(), found.step, joined(lines, "; ")));
}

std::vector<std::string> check_run_state(const Json& state, const fs::path& checkpoint,
                                         const spec::Job& job, const Json& identity,
                                         const Rows& rows) {
  const Json saved_models = state.value("models", Json::object());
  for (const NamedModel& model : models_of(job)) {
    if (!model.trained) continue;
    const fs::path folder = checkpoint / to_string(model.id);
    const bool needs_base = model.config->lora.rank > 0 && !spec::has_weights(folder);
    if (!needs_base || !saved_models.contains(model.key) ||
        saved_models[model.key] == identity["models"].value(model.key, Json()))
      continue;
    throw Error(ErrorCode::kInvalidArgument,
                format("{} holds an adapter of another model than {}.path \"{}\": that has other "
                       "contents than when the adapter was trained. Set the path to the folder of "
                       "its base",
                       folder.string(), model.key, model.path));
  }
  std::vector<std::string> warnings;
  for (const std::string& line : differences(state, job))
    warnings.push_back(format("Differs from the checkpoint: {}", line));
  for (const std::string& line : model_differences(state, identity))
    warnings.push_back(format("Differs from the checkpoint: {}", line));
  if (job.reads_experience()) return warnings;  // without rows
  if (const auto saved = state.value("rows", rows.size()); saved != rows.size()) {
    warnings.push_back(
        format("The training files have {} rows, and had {} at the checkpoint: they come in "
               "another order",
               rows.size(), saved));
  } else if (state.value("data", Json(rows.files().contents())) != Json(rows.files().contents())) {
    warnings.emplace_back("The training files have other contents than at the checkpoint");
  }
  return warnings;
}

Status refused_resume(Status status, const train::FoundCheckpoint& found, const Json& state,
                      const spec::Job& job) {
  const std::string keys = joined(differences(state, job), "; ");
  const ErrorCode code = status.code();
  const bool of_files = code == ErrorCode::kIo || code == ErrorCode::kCorrupt;
  const bool of_contents = code == ErrorCode::kNotFound || code == ErrorCode::kInvalidArgument;
  if (of_files || (of_contents && keys.empty())) return broken_checkpoint(status, found);
  if (keys.empty()) return status;
  return std::move(status).with_context(
      format("resuming with other keys than the checkpoint's ({})", keys));
}

Status broken_checkpoint(const Status& why, const train::FoundCheckpoint& found) {
  std::string text = format("Cannot resume from {}: {}. ", found.folder.string(), why.message());
  for (const train::FoundCheckpoint& other : train::other_checkpoints(found)) {
    if (!is_whole(other)) continue;
    const std::string folder = fs::absolute(other.folder).lexically_normal().string();
    text += format("The checkpoint {} it is {}; to resume from that, add trainer.resume_mode={}",
                   other.step < found.step ? "before" : "after", folder, folder);
    return {ErrorCode::kInvalidArgument, std::move(text)};
  }
  text += format(
      "There is no other checkpoint in {}; to start again, set trainer.default_local_dir to "
      "another folder",
      found.folder.parent_path().string());
  return {ErrorCode::kInvalidArgument, std::move(text)};
}

std::vector<spec::JobChange> saved_choices(const Json& state) {
  const Json saved = state.value("config", Json::object());
  std::vector<spec::JobChange> same;
  for (const spec::ModelId model : {spec::ModelId::kActor, spec::ModelId::kCritic}) {
    const spec::JobField<spec::Dtype> dtype = spec::job_fields::state_dtype(model);
    const Json::json_pointer at = pointer_to(spec::key_of(dtype));
    if (saved.contains(at) && saved[at].is_string())
      same.emplace_back(dtype, value_or_throw(spec::parse_dtype(saved[at].get<std::string>())));
  }
  return same;
}

std::optional<spec::Degrees> saved_degrees(const Json& state, const spec::Job& job) {
  if (state.value("ranks", std::int64_t{0}) != job.ranks()) return std::nullopt;
  const Json saved = state.value("config", Json::object());
  spec::Degrees out{};
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (!spec::is_shown(spec::kDegreeKeys[k], job.parallel.automatic)) continue;
    const Json::json_pointer at = pointer_to(std::string(spec::kDegreeKeys[k].path));
    if (!saved.contains(at)) return std::nullopt;
    const std::optional<std::int64_t> degree = spec::degree_of(spec::kDegreeKeys[k], saved[at]);
    if (!degree) return std::nullopt;
    out[k] = *degree;
  }
  return out;
}

}  // namespace neap::rlhf
