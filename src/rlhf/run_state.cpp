#include "rlhf/run_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/config.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"

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

// Keys that say where things are and how results are kept: no other training by them.
constexpr std::array kOutsideTraining = {"actor_rollout_ref.nccl_timeout",
                                         "data.cache_dir",
                                         "data.rows_in_memory",
                                         "device.ordinal",
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
                                         "trainer.save_freq",
                                         "trainer.trace_max_size",
                                         "trainer.val_samples"};

// "key: was 1, is 2" of the checkpoint's training and the job's.
std::vector<std::string> differences(const Json& state, const spec::Job& job) {
  if (!state.contains("config")) return {};
  Json now = config_json(job);
  for (const char* path : kOutsideTraining) {
    const Json::json_pointer at = pointer_to(path);
    now.at(at.parent_pointer()).erase(at.back());
  }
  return config_differences(state["config"], now);
}

}  // namespace

Json read_run_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kStateFile;
  Json state = value_or_throw(parse_json(value_or_throw(read_file(file, 16_MiB)), file.string()));
  const auto absent_or = [&](const char* key, bool (Json::*is)() const noexcept) {
    return !state.contains(key) || (state[key].*is)();
  };
  if (!state.is_object() || !absent_or("task", &Json::is_string) ||
      !absent_or("config", &Json::is_object) || !absent_or("rows", &Json::is_number_unsigned)) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is not the state of a training run", file.string()));
  }
  return state;
}

void write_run_state(const fs::path& checkpoint, std::int64_t step, const spec::Job& job,
                     const Rows& rows, const BestCheckpoint& best, const StopTarget& stop) {
  Json state = Json::object();
  state["schema"] = 1;
  state["task"] = to_string(job.task);
  state["step"] = step;
  state["rows"] = rows.size();
  state["data"] = rows.files().contents();
  state["config"] = config_json(job);
  if (best.step()) state["best"] = best.to_json();
  if (const Json last = stop.to_json(); !last.is_null()) state["stop"] = last;
  throw_if_error(write_file_atomic(checkpoint / kStateFile, state.dump(1) + "\n"));
}

void check_run_state(const Json& state, const fs::path& checkpoint, const spec::Job& job,
                     const Rows& rows) {
  if (state.value("task", "") != to_string(job.task)) {
    throw Error(ErrorCode::kInvalidArgument,
                format("{} is not a checkpoint of task \"{}\"", (checkpoint / kStateFile).string(),
                       to_string(job.task)));
  }
  for (const std::string& line : differences(state, job))
    log::warn(format("Differs from the checkpoint: {}", line));
  if (const auto saved = state.value("rows", rows.size()); saved != rows.size()) {
    log::warn(
        format("The training files have {} rows, and had {} at the checkpoint: they come in "
               "another order",
               rows.size(), saved));
  } else if (state.value("data", Json(rows.files().contents())) != Json(rows.files().contents())) {
    log::warn("The training files have other contents than at the checkpoint");
  }
}

Status refused_resume(Status status, const Json& state, const spec::Job& job) {
  std::string keys;
  for (const std::string& line : differences(state, job)) keys += (keys.empty() ? "" : "; ") + line;
  if (keys.empty()) return status;
  return std::move(status).with_context(
      format("resuming with other keys than the checkpoint's ({})", keys));
}

std::vector<std::string> saved_choices(const Json& state) {
  const Json saved = state.value("config", Json::object());
  std::vector<std::string> same;
  for (const std::string key :
       {"actor_rollout_ref.actor.optim.state_dtype", "critic.optim.state_dtype"}) {
    const Json::json_pointer at = pointer_to(key);
    if (saved.contains(at) && saved[at].is_string())
      same.push_back(key + "=" + saved[at].get<std::string>());
  }
  return same;
}

}  // namespace neap::rlhf
