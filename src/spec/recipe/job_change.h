// Changes of a job's members, as typed values. A plan uses them for the keys that it chooses.
//
// Job::bind() has each member's key path, text form and limits. key_of() and assignments() look a
// member up there for messages and files; no other code handles text.
//
// Threads   values and stateless functions.
// Failure   a value of the wrong type does not compile.
// Cost      assignments() and key_of() bind a job's keys: 0.2 ms.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "spec/job/job.h"
#include "spec/recipe/recipe.h"

namespace neap::spec {

/// A member of the job that a key sets.
template <class T>
class JobField {
 public:
  /// `of`: [](auto& job) -> auto& { return job.memory.optimizer_offload; }
  template <class Of>
  constexpr explicit JobField(Of /*of*/)
      : read_([](const Job& job) -> const T& { return Of{}(job); }),
        write_([](Job& job) -> T& { return Of{}(job); }) {}
  [[nodiscard]] const T& of(const Job& job) const { return read_(job); }
  [[nodiscard]] T& of(Job& job) const { return write_(job); }
  friend bool operator==(const JobField&, const JobField&) = default;

 private:
  const T& (*read_)(const Job&);
  T& (*write_)(Job&);
};

/// The members that a plan may change.
namespace job_fields {

inline constexpr JobField<Residency> kResidency([](auto& job) -> auto& {
  return job.memory.offload;
});
inline constexpr JobField<Colocation> kColocation([](auto& job) -> auto& {
  return job.rollout.colocation;
});
inline constexpr JobField<UpdateChoice> kUpdate([](auto& job) -> auto& {
  return job.memory.optimizer_offload;
});
inline constexpr JobField<std::vector<Measure>> kAllow([](auto& job) -> auto& {
  return job.memory.allow;
});
inline constexpr JobField<bool> kPrecomputeReference([](auto& job) -> auto& {
  return job.dpo.precompute_ref_log_probs;
});
inline constexpr JobField<std::int64_t> kResponseLength([](auto& job) -> auto& {
  return job.data.max_response_length;
});
inline constexpr JobField<std::int64_t> kRolloutBatch([](auto& job) -> auto& {
  return job.rollout.batch_size;
});
inline constexpr JobField<std::int64_t> kCacheTokens([](auto& job) -> auto& {
  return job.rollout.max_total_tokens;
});
inline constexpr JobField<std::int64_t> kPrefillTokens([](auto& job) -> auto& {
  return job.rollout.max_num_batched_tokens;
});

inline constexpr JobField<std::int64_t> kRolloutTensorRanks([](auto& job) -> auto& {
  return job.rollout.tensor_model_parallel_size;
});

// Sizes of micro-batches: rows if padded, tokens if packed.
inline constexpr JobField<std::int64_t> kDataRows([](auto& job) -> auto& {
  return job.data.micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kDataTokens([](auto& job) -> auto& {
  return job.data.max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kActorRows([](auto& job) -> auto& {
  return job.actor.ppo_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kActorTokens([](auto& job) -> auto& {
  return job.actor.ppo_max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kCriticRows([](auto& job) -> auto& {
  return job.critic.ppo_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kCriticTokens([](auto& job) -> auto& {
  return job.critic.ppo_max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kLogProbRows([](auto& job) -> auto& {
  return job.rollout.log_prob_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kLogProbTokens([](auto& job) -> auto& {
  return job.rollout.log_prob_max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kReferenceRows([](auto& job) -> auto& {
  return job.reference_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kReferenceTokens([](auto& job) -> auto& {
  return job.reference_max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kRewardRows([](auto& job) -> auto& {
  return job.reward_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kRewardTokens([](auto& job) -> auto& {
  return job.reward_max_token_len_per_gpu;
});
inline constexpr JobField<std::int64_t> kValueRows([](auto& job) -> auto& {
  return job.critic.forward_micro_batch_size_per_gpu;
});
inline constexpr JobField<std::int64_t> kValueTokens([](auto& job) -> auto& {
  return job.critic.forward_max_token_len_per_gpu;
});

/// Token budgets of micro-batches, scoring first. A scoring budget of 0 means that another key
/// applies.
inline constexpr std::array kScoringTokens = {kLogProbTokens, kReferenceTokens, kRewardTokens,
                                              kValueTokens};
inline constexpr std::array kTrainingTokens = {kDataTokens, kActorTokens, kCriticTokens};

// The critic has its own key; other trained models use the actor's.
[[nodiscard]] JobField<CheckpointMode> activation_checkpointing(ModelId model);
[[nodiscard]] JobField<bool> gradient_checkpointing(ModelId model);
[[nodiscard]] JobField<std::int64_t> lora_rank(ModelId model);
[[nodiscard]] JobField<Dtype> state_dtype(ModelId model);

}  // namespace job_fields

class JobChange {
 public:
  template <class T>
  JobChange(JobField<T> field, std::type_identity_t<T> value)
      : setting_(Setting<T>{field, std::move(value)}) {}

  void apply(Job& job) const;
  [[nodiscard]] const void* member_of(Job& job) const;
  /// The new value of `field`; null if this change is about another member.
  template <class T>
  [[nodiscard]] const T* value_of(JobField<T> field) const {
    const auto* setting = std::get_if<Setting<T>>(&setting_);
    return setting != nullptr && setting->field == field ? &setting->value : nullptr;
  }
  friend bool operator==(const JobChange&, const JobChange&) = default;

 private:
  template <class T>
  struct Setting {
    JobField<T> field;
    T value;
    friend bool operator==(const Setting&, const Setting&) = default;
  };
  std::variant<Setting<bool>, Setting<std::int64_t>, Setting<Residency>, Setting<Colocation>,
               Setting<UpdateChoice>, Setting<CheckpointMode>, Setting<Dtype>,
               Setting<std::vector<Measure>>>
      setting_;
};

/// Applies changes to a job. Job::validate() checks whether its keys still agree with each other.
void apply(const std::vector<JobChange>& changes, Job& job);
/// The key path of a member: "memory.optimizer_offload".
template <class T>
[[nodiscard]] std::string key_of(JobField<T> field) {
  Job job;
  return job.bind().find_bound(&field.of(job))->path;
}
/// As "key.path=value", the form of command-line overrides.
[[nodiscard]] std::vector<std::string> assignments(const std::vector<JobChange>& changes);

}  // namespace neap::spec
