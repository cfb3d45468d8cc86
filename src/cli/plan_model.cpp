#include "cli/plan_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/format.h"
#include "base/text_table.h"
#include "cli/command.h"
#include "plan/results/model_roles.h"
#include "plan/results/plan_words.h"
#include "plan/search/plan_search.h"
#include "spec/model/layout.h"

namespace neap::cli {
namespace {

constexpr std::int64_t kRows = 32, kResponses = 8, kAdapterRank = 16, kMostTokens = 2048;

struct Training {
  std::string_view name, task;
  bool lora = false;
};
constexpr std::array kTrainings = {
    Training{"SFT", "sft"},   Training{"SFT, LoRA", "sft", true},
    Training{"DPO", "dpo"},   Training{"DPO, LoRA", "dpo", true},
    Training{"GRPO", "grpo"}, Training{"GRPO, LoRA", "grpo", true},
    Training{"PPO", "ppo"},   Training{"PPO, LoRA", "ppo", true},
};

struct Row {
  Training training;
  spec::Job job{};
  std::vector<std::string> keys{};             // override keys of the job
  std::optional<plan::MemoryPlan> fastest{};   // nullopt: no plan fits
  std::optional<plan::MemoryPlan> smallest{};  // nullopt: host memory is too small for any plan
  Bytes least{};                               // smallest capacity that works
};

std::vector<std::string> keys_of(const Training& training, const std::string& folder,
                                 std::int64_t tokens) {
  const std::int64_t response = tokens / 2;
  const std::int64_t micro_batch = 2 * tokens;  // DPO trains on pairs
  std::vector<std::string> keys = {format("task={}", training.task),
                                   "actor_rollout_ref.model.path=" + folder,
                                   format("data.train_batch_size={}", kRows),
                                   format("data.max_prompt_length={}", tokens - response),
                                   format("data.max_response_length={}", response)};
  if (training.lora) keys.push_back(format("actor_rollout_ref.model.lora_rank={}", kAdapterRank));
  const bool ppo = training.task == "ppo";
  if (!ppo && training.task != "grpo") {
    keys.push_back(format("data.max_token_len_per_gpu={}", micro_batch));
    return keys;
  }
  keys.emplace_back("reward.functions=[{kind = \"exact\"}]");
  keys.push_back(format("actor_rollout_ref.actor.ppo_mini_batch_size={}", kRows));
  keys.push_back(format("actor_rollout_ref.actor.ppo_max_token_len_per_gpu={}", micro_batch));
  keys.push_back(format("actor_rollout_ref.rollout.batch_size={}", kRows));
  if (!ppo) {
    keys.push_back(format("actor_rollout_ref.rollout.n={}", kResponses));
    return keys;
  }
  keys.push_back(format("critic.ppo_max_token_len_per_gpu={}", micro_batch));
  if (training.lora) keys.push_back(format("critic.model.lora_rank={}", kAdapterRank));
  return keys;
}

Status plan_row(const plan::Target& target, Row& row) {
  if (row.job.has_stages() || row.job.parallel.automatic.any())
    return {
        ErrorCode::kInvalidArgument,
        "A model is planned without stages and without \"auto\" degrees: write a job's file and "
        "plan that"};
  NEAP_TRY_ASSIGN(auto search,
                  plan::PlanSearch::make(row.job, target, plan::PlanSearch::Scope::kConfigured));
  Result<plan::MemoryPlan> fastest = search.fastest(target.capacity);
  if (fastest.ok()) {
    row.fastest = std::move(fastest).value();
  } else if (fastest.status().code() != ErrorCode::kDoesNotFit) {
    return fastest.status();
  }
  NEAP_TRY_ASSIGN(row.least, search.least_capacity());
  if (row.least == Bytes(~0ull)) return {};
  NEAP_TRY_ASSIGN(row.smallest, search.fastest(row.least));
  return {};
}

std::string table_of(const std::vector<Row>& rows, const plan::PlannedDevice& device) {
  const bool card = !device.context.is_zero();
  const char* const memory = card ? "nvidia-smi" : "memory";
  std::vector<std::vector<std::string>> lines = {{"training", memory, "host memory", "s a step",
                                                  std::string("least ") + memory, "host memory",
                                                  "s a step"}};
  bool lacks = false;
  for (const Row& row : rows) {
    std::vector<std::string> line = {std::string(row.training.name)};
    for (const auto* plan : {&row.fastest, &row.smallest}) {
      if (!*plan) {
        line.insert(line.end(), {"does not fit", "-", "-"});
        continue;
      }
      const plan::MemoryPlan& found = **plan;
      const Bytes size = plan == &row.fastest ? found.peak : row.least;
      lacks = lacks || device.lacks_host(found);
      line.push_back(plan::capacity_text(device.on_card(size)));
      line.push_back(to_string(found.host_bytes) + (device.lacks_host(found) ? "*" : ""));
      line.push_back(format("{:.3g}", found.seconds()));
    }
    lines.push_back(std::move(line));
  }
  std::string out = table_text(lines, {1});
  if (card) out += format("nvidia-smi: what is planned and {} of CUDA's context\n", device.context);
  if (lacks) out += format("*: more than the {} that this machine has for it\n", device.host);
  return out;
}

Json json_of(const Row& row) {
  Json out = {{"task", row.training.task}, {"lora_rank", row.training.lora ? kAdapterRank : 0},
              {"keys", row.keys},          {"fastest", nullptr},
              {"smallest", nullptr},       {"min_capacity", nullptr}};
  if (row.fastest) out["fastest"] = plan::summary_json(*row.fastest);
  if (!row.smallest) return out;
  out["smallest"] = plan::summary_json(*row.smallest);
  out["min_capacity"] = row.least.count();
  return out;
}

}  // namespace

bool is_model(const std::string& path) {
  const std::filesystem::path file = path;
  std::error_code error;
  return file.filename() == "config.json" || std::filesystem::is_directory(file, error);
}

Status plan_model(const std::string& path, const std::vector<std::string>& overrides,
                  const plan::DeviceQuestion& asked, bool json) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error);
  if (!std::filesystem::is_directory(folder, error)) folder = folder.parent_path();
  NEAP_TRY_ASSIGN(const auto shape, spec::Architecture::from_folder(folder));
  const std::int64_t tokens = std::min(kMostTokens, shape.longest_sequence());
  const auto parameters = static_cast<double>(
      spec::total_elements(spec::flat_layout(shape, spec::Head::kLanguageModel)));
  plan::PlannedDevice device;
  std::vector<Row> rows;
  for (const Training& training : kTrainings) {
    Row row{training};
    row.keys = keys_of(training, folder.string(), tokens);
    row.keys.insert(row.keys.end(), overrides.begin(), overrides.end());
    NEAP_TRY(spec::Job::load({}, row.keys, row.job));
    if (rows.empty()) {
      plan::DeviceQuestion question = asked;
      question.model = true;
      NEAP_TRY_ASSIGN(device, plan::device_to_plan_for(row.job, question, plan::driver_gpus()));
    }
    if (!device.keys.empty()) {
      row.keys.insert(row.keys.end(), device.keys.begin(), device.keys.end());
      row.job = spec::Job();
      NEAP_TRY(spec::Job::load({}, row.keys, row.job));
    }
    if (const Status status = plan_row(device.choice.target, row); !status.ok())
      return {status.code(), format("On {}: {}", device.heading(), status.message())};
    rows.push_back(std::move(row));
  }
  if (json) {
    Json out = device.to_json(rows.front().job);
    out["schema"] = 1;
    out["model"] = folder.string();
    out["parameters"] = parameters;
    out["jobs"] = Json::array();
    for (const Row& row : rows) out["jobs"].push_back(json_of(row));
    return write_output(json_text(out, 2) + "\n");
  }
  const spec::Job& job = rows.front().job;
  std::string text =
      format("{}, {:.3g} billion parameters, on {}\n", path, parameters / 1e9, device.heading());
  if (!device.sizes.empty()) text += format("capacity {}\n", device.sizes);
  text += format(
      "A step of {} rows of {} + {} tokens in packed micro-batches; GRPO samples {} responses to "
      "each, of which {} are decoded together; LoRA has rank {}. key.path=value behind the folder "
      "changes all jobs.\n\n",
      job.data.train_batch_size, job.data.max_prompt_length, job.data.max_response_length,
      kResponses, kRows, kAdapterRank);
  return write_output(text + table_of(rows, device));
}

}  // namespace neap::cli
