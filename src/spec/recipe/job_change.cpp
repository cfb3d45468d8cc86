#include "spec/recipe/job_change.h"

#include "base/config.h"

namespace neap::spec {
namespace job_fields {

JobField<CheckpointMode> activation_checkpointing(ModelId model) {
  if (model == ModelId::kCritic)
    return JobField<CheckpointMode>(
        [](auto& job) -> auto& { return job.critic.model.activation_checkpointing; });
  return JobField<CheckpointMode>(
      [](auto& job) -> auto& { return job.actor_model.activation_checkpointing; });
}

JobField<bool> gradient_checkpointing(ModelId model) {
  if (model == ModelId::kCritic)
    return JobField<bool>(
        [](auto& job) -> auto& { return job.critic.model.enable_gradient_checkpointing; });
  return JobField<bool>(
      [](auto& job) -> auto& { return job.actor_model.enable_gradient_checkpointing; });
}

JobField<std::int64_t> lora_rank(ModelId model) {
  if (model == ModelId::kCritic)
    return JobField<std::int64_t>([](auto& job) -> auto& { return job.critic.model.lora.rank; });
  return JobField<std::int64_t>([](auto& job) -> auto& { return job.actor_model.lora.rank; });
}

JobField<Dtype> state_dtype(ModelId model) {
  if (model == ModelId::kCritic)
    return JobField<Dtype>([](auto& job) -> auto& { return job.critic.optim.state_dtype; });
  return JobField<Dtype>([](auto& job) -> auto& { return job.actor.optim.state_dtype; });
}

}  // namespace job_fields

void JobChange::apply(Job& job) const {
  std::visit([&](const auto& setting) { setting.field.of(job) = setting.value; }, setting_);
}

const void* JobChange::member_of(Job& job) const {
  return std::visit([&](const auto& setting) -> const void* { return &setting.field.of(job); },
                    setting_);
}

void apply(const std::vector<JobChange>& changes, Job& job) {
  for (const JobChange& change : changes) change.apply(job);
}

std::vector<std::string> assignments(const std::vector<JobChange>& changes) {
  std::vector<std::string> out;
  if (changes.empty()) return out;
  Job job;
  const ConfigTable table = job.bind();
  for (const JobChange& change : changes) {
    change.apply(job);
    const ConfigTable::Key& key = *table.find_bound(change.member_of(job));
    const Json value = key.read();
    out.push_back(key.path + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return out;
}

}  // namespace neap::spec
