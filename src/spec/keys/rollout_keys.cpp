// The keys of generation and of the reference, with limits and help texts for
// docs/configuration.md.
#include <optional>
#include <utility>

#include "spec/keys/job_keys.h"
#include "spec/keys/size_checks.h"

namespace neap::spec {
namespace {

void bind_validation_sampling(ConfigTable& t, const std::string& at, ValidationSampling& v) {
  t.bind(at + ".n", &v.n,
         "Responses for each held-out prompt, in validation and `neap eval`; more than one needs "
         "`do_sample`.")
      .at_least(1)
      .at_most(kMostResponses);
  t.bind(at + ".do_sample", &v.do_sample,
         "Samples the responses to held-out prompts; false: greedy.");
  const ConfigCondition samples = where(at + ".do_sample", {true});
  t.bind(at + ".temperature", &v.temperature, "Temperature of that sampling.")
      .at_least(0)
      .only(samples);
  t.bind(at + ".top_p", &v.top_p, "As `rollout.top_p`.").at_least(0).at_most(1).only(samples);
  t.bind(at + ".top_k", &v.top_k, "As `rollout.top_k`.").at_least(-1).only(samples);
}

void bind_rollout_sampling(ConfigTable& t, const std::string& at, RolloutConfig& r) {
  t.bind(at + ".temperature", &r.temperature, "Logits are divided by it before sampling.")
      .at_least(0);
  t.bind(at + ".top_p", &r.top_p,
         "Samples from the smallest set of tokens whose cumulative probability reaches top_p.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".top_k", &r.top_k, "Samples from this many most likely tokens; -1: all.")
      .at_least(-1);
  t.bind(at + ".min_p", &r.min_p, "Drops tokens below this fraction of the highest probability.")
      .at_least(0)
      .at_most(1);
  t.bind(at + ".repetition_penalty", &r.repetition_penalty,
         "Positive logits of tokens in the prompt or the response are divided by it, negative ones "
         "multiplied; 1: off.")
      .at_least(1e-6);
  t.bind(at + ".presence_penalty", &r.presence_penalty,
         "Subtracted from the logits of tokens that are in the response.");
  t.bind(at + ".frequency_penalty", &r.frequency_penalty,
         "Subtracted from a token's logit for each time that it is in the response.");
}

void bind_cache_tokens(ConfigTable& t, const std::string& path, RolloutConfig& r) {
  ConfigTable::Key& key = t.bind(
      path, &r.max_total_tokens, &r.automatic_total_tokens,
      "Tokens of a rank's KV cache, in pages of 64; 0: room for `batch_size` longest "
      "sequences; `auto`: the plan chooses. Without a free page, the youngest sequence waits "
      "and is prefilled again.");
  key.in("tokens").at_least(0);
  key.assign = [&r, assign = std::move(key.assign)](const Json& value) -> Status {
    NEAP_TRY(assign(value));
    if (r.automatic_total_tokens) r.max_total_tokens = 0;
    return {};
  };
  key.read = [&r, read = std::move(key.read)] {
    return r.max_total_tokens > 0 ? Json(r.max_total_tokens) : read();
  };
}

void bind_reference(ConfigTable& t, Job& job) {
  const ConfigTable::Section reference(
      t, {.holds = [&job] { return job.uses_reference(); },
          .words = "the reference is used: `task` is `dpo`, or "
                   "`actor_rollout_ref.actor.use_kl_loss` or `algorithm.use_kl_in_reward` is true",
          .otherwise = "the job has no reference"});
  const auto packs = [&job](bool wanted) {
    return ConfigCondition{
        .holds = [&job, wanted] { return job.packs() == wanted; },
        .words = wanted ? "sequences are packed (`use_dynamic_bsz`)"
                        : "sequences are not packed (`use_dynamic_bsz`)",
        .otherwise = wanted ? "sequences are not packed" : "sequences are packed"};
  };
  bind_model(t, "actor_rollout_ref.ref.model", job.reference_model,
             "Folder of the reference model; empty: the actor's start.", false);
  t.bind("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
         &job.reference_micro_batch_size_per_gpu,
         "Sequences whose reference log-probabilities are computed at once; 0: as "
         "`rollout.log_prob_micro_batch_size_per_gpu`, in dpo as in training.")
      .in("sequences")
      .at_least(0)
      .at_most(kMostSequences)
      .only(packs(false));
  t.bind("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
         &job.reference_max_token_len_per_gpu,
         "Tokens of a packed micro-batch of the reference; 0: as "
         "`rollout.log_prob_max_token_len_per_gpu`, in dpo as in training.")
      .in("tokens")
      .at_least(0)
      .at_most(kMostMicroTokens)
      .only(packs(true));
  const ConfigTable::Section own(
      t, {.holds = [&job] { return !job.reference_is_actor_base(); },
          .words = "the reference has weights of its own",
          .otherwise = "the reference is the actor's base, without its adapter"});
  bind_placement(t, "actor_rollout_ref.ref", job.reference_placement,
                 &job.parallel.automatic.reference_zero, job);
}

void bind_rollout_policies(ConfigTable& t, const std::string& at, RolloutConfig& r) {
  const ConfigTable::Section policies(t, of_policies());
  t.bind(at + ".tensor_model_parallel_size", &r.tensor_model_parallel_size,
         "Tensor-parallel ranks during rollout; 0: as in training. Each rank's part is "
         "assembled from all ranks' shards and stages when a rollout begins.")
      .in("ranks")
      .at_least(0)
      .at_most(kMostRanks);
  t.bind(at + ".log_prob_micro_batch_size_per_gpu", &r.log_prob_micro_batch_size_per_gpu,
         "Sequences whose old log-probabilities are computed at once.")
      .in("sequences")
      .at_least(1)
      .at_most(kMostSequences)
      .only(where(kPacksPolicy, {false}));
  t.bind(at + ".log_prob_max_token_len_per_gpu", &r.log_prob_max_token_len_per_gpu,
         "Tokens of a packed micro-batch whose old log-probabilities are computed at once; 0: as "
         "`actor.ppo_max_token_len_per_gpu`.")
      .in("tokens")
      .at_least(0)
      .at_most(kMostMicroTokens)
      .only(where(kPacksPolicy, {true}));
  bind_enum(t, at + ".colocation", &r.colocation, parse_colocation,
            "How rollout and training share the device. `stages`: tags come as phases need them. "
            "With a copy of the weights: `whole`, all at once; `reload`, through the disk; "
            "`resident`, nothing leaves.")
      .one_of(colocation_names());
}

}  // namespace

void bind_rollout(ConfigTable& t, Job& job) {
  RolloutConfig& r = job.rollout;
  const std::string at = "actor_rollout_ref.rollout";
  std::optional<ConfigTable::Section> generates(std::in_place, t, of_responses());
  t.bind(at + ".n", &r.n, "Responses for each prompt; grpo compares them.")
      .at_least(1)
      .at_most(kMostResponses)
      .default_where(
          "grpo, with estimators that compare responses",
          [&job] {
            return job.task == Task::kGrpo && compares_responses(job.algorithm.adv_estimator);
          },
          8);
  bind_rollout_sampling(t, at, r);
  t.bind(at + ".stop", &r.stop, "Texts that end a response, like an end token.");
  t.bind(at + ".sample_lengths", &r.sample_lengths,
         "For measurements with random weights: draws each response's length, log-uniform between "
         "1/32 of `data.max_response_length` and all of it.");
  t.bind(at + ".batch_size", &r.batch_size,
         "Most sequences that a rank decodes together, which sets the size of the KV cache unless "
         "`max_total_tokens` does; 0: its whole share of the batch. Plans may take fewer "
         "(`memory.allow`).")
      .in("sequences")
      .at_least(0)
      .at_most(kMostSequences);
  bind_cache_tokens(t, at + ".max_total_tokens", r);
  t.bind(at + ".max_num_batched_tokens", &r.max_num_batched_tokens,
         "Prompt tokens that one pass prefills: several prompts, or a part of a longer one. It "
         "bounds the memory of prefilling.")
      .in("tokens")
      .at_least(1);
  t.bind(at + ".enable_chunked_prefill", &r.enable_chunked_prefill,
         "Prefills prompts of more than `max_num_batched_tokens` tokens in parts; false: longer "
         "prompts are refused.");
  t.bind(at + ".calculate_log_probs", &r.calculate_log_probs,
         "Keeps the log-probability of each sampled token (before `min_p`, `top_k` and `top_p`) "
         "and logs its distance to the trainer's; `algorithm.rollout_correction` implies it.");
  t.bind(at + ".graphs", &r.graphs,
         "`auto`: decodes in CUDA graphs if the plan has memory for them; `off`: never. Results "
         "are bitwise identical.")
      .one_of({"auto", "off"});
  generates.reset();
  bind_rollout_policies(t, at, r);
  bind_validation_sampling(t, at + ".val_kwargs", r.val_kwargs);
  bind_reference(t, job);
}

}  // namespace neap::spec
