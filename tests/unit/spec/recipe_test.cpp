#include "spec/recipe/recipe.h"
#include "spec/recipe/kept_experience.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace neap::spec {
namespace {

Job job_of(Task task) {
  Job job;
  job.task = task;
  job.actor_model.path = "actor";
  job.reward_model.path = "reward";
  job.algorithm.use_kl_in_reward = true;
  return job;
}
Recipe recipe_of(const Job& job) {
  return describe(job);
}
/// "actor.weights need need - drop": a cell a phase, "write" where the contents change.
std::vector<std::string> table(const Recipe& recipe) {
  const auto has = [](const std::vector<TagId>& list, TagId tag) {
    return std::find(list.begin(), list.end(), tag) != list.end();
  };
  std::vector<std::string> rows;
  for (const TagId tag : recipe.tags) {
    std::string row = to_string(tag);
    for (const Phase& p : recipe.phases) {
      row += has(p.writes, tag)     ? " write"
             : has(p.needs, tag)    ? " need"
             : has(p.discards, tag) ? " drop"
                                    : " -";
    }
    rows.push_back(row);
  }
  return rows;
}
std::vector<std::string> phases(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const Phase& p : recipe.phases) names.emplace_back(to_string(p.id));
  return names;
}
using Lines = std::vector<std::string>;

TEST(Recipe, PpoIsTheTableOfTheArchitecture) {
  const Job job = job_of(Task::kPpo);
  const Recipe r = recipe_of(job);
  EXPECT_EQ(phases(r), (Lines{"generate", "actor_logp", "ref_logp", "values", "rewards",
                              "train_critic", "train_actor"}));
  EXPECT_EQ(
      table(r),
      (Lines{"actor.weights need need - - - - write", "actor.grads - - - - - - write",
             "actor.optimizer - - - - - - write", "rollout.kv write drop drop drop drop drop drop",
             "reference.weights - - need - - - -", "critic.weights - - - need - write -",
             "critic.grads - - - - - write -", "critic.optimizer - - - - - write -",
             "reward.weights - - - - need - -"}));
  EXPECT_EQ(r.find(ModelId::kReference)->path, "actor");
  EXPECT_EQ(r.find(ModelId::kCritic)->path, "reward");
  EXPECT_EQ(r.find(ModelId::kCritic)->optimizer, &job.critic.optim);
  EXPECT_EQ(r.find(PhaseId::kTrainCritic)->body, Body::kValueUpdate);
  EXPECT_TRUE(r.frozen({TagKind::kWeights, ModelId::kReward}));
  EXPECT_FALSE(r.frozen({TagKind::kWeights, ModelId::kActor}));
}

TEST(Recipe, KeptExperienceLeavesTheUpdates) {
  Job job = job_of(Task::kPpo);
  job.trainer.experience = "read";
  const Recipe r = recipe_of(job);
  EXPECT_EQ(phases(r), (Lines{"train_critic", "train_actor"}));
  EXPECT_EQ(table(r),
            (Lines{"actor.weights - write", "actor.grads - write", "actor.optimizer - write",
                   "critic.weights write -", "critic.grads write -", "critic.optimizer write -"}));
  EXPECT_EQ(r.find(ModelId::kCritic)->path, "reward") << "the critic starts as in the kept run";
  EXPECT_EQ(job.models(), (std::vector{ModelId::kActor, ModelId::kCritic}));
  job.rollout.tensor_model_parallel_size = 2;
  job.launched_ranks = 2;
  EXPECT_FALSE(job.has_generation_placement());
  job.task = Task::kGrpo;  // the actor alone
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"train_actor"}));
  job.trainer.experience = "keep";
  EXPECT_EQ(phases(recipe_of(job)),
            (Lines{"generate", "actor_logp", "ref_logp", "rewards", "train_actor"}));
}

TEST(KeptExperience, HasWhatTheUpdatesRead) {
  Job job = job_of(Task::kPpo);
  job.data.train_batch_size = 4;
  job.data.max_prompt_length = 3;
  job.data.max_response_length = 2;
  const auto names = [&] {
    Lines out;
    for (const KeptTensor& tensor : kept_tensors(job)) out.emplace_back(to_string(tensor.field));
    return out;
  };
  EXPECT_EQ(names(), (Lines{"tokens", "lengths", "response_lengths", "scores", "mask", "advantages",
                            "old_log_probs", "values", "returns"}));
  EXPECT_EQ(kept_bytes(job).count(), 4U * (5 * 4 + 8 + 8 + 4 + 5 * 2 * 4));
  job.task = Task::kGrpo;
  job.rollout.n = 2;
  job.algorithm.use_kl_in_reward = false;  // one update reads no old log-probabilities
  EXPECT_EQ(names(),
            (Lines{"tokens", "lengths", "response_lengths", "scores", "mask", "advantages"}));
  EXPECT_EQ(kept_tensors(job).front().shape, (std::vector<std::int64_t>{8, 5}));
  job.actor.use_kl_loss = true;
  job.actor.ppo_epochs = 2;
  job.actor.loss_mode = PolicyLoss::kClipCov;
  job.algorithm.rollout_correction.rollout_is = "token";
  EXPECT_EQ(names(), (Lines{"tokens", "lengths", "response_lengths", "scores", "mask", "advantages",
                            "old_log_probs", "ref_log_probs", "rollout_weights", "noise"}));
}

TEST(Recipe, GraphsOfDecodingHaveATagOfGenerations) {
  const Job job = job_of(Task::kGrpo);
  EXPECT_FALSE(recipe_of(job).find(PhaseId::kGenerate)->graphs);
  StepModes modes;
  modes.graphs = true;
  const Recipe r = describe(job, modes);
  EXPECT_EQ(table(r),
            (Lines{"actor.weights need need - - write", "actor.grads - - - - write",
                   "actor.optimizer - - - - write", "rollout.kv write drop drop drop drop",
                   "rollout.graphs write drop drop drop drop", "reference.weights - - need - -",
                   "reward.weights - - - need -"}));
  for (const Phase& phase : r.phases) EXPECT_EQ(phase.graphs, phase.body == Body::kGenerate);
  EXPECT_TRUE(is_scratch(TagKind::kGraphs));
  EXPECT_EQ(to_string(TagId{TagKind::kGraphNodes}), "rollout.graph_nodes");
}

TEST(Recipe, AdaptersLeaveTheBaseAsReference) {
  Job job = job_of(Task::kGrpo);
  job.actor_model.lora.rank = 8;
  const Recipe r = recipe_of(job);
  EXPECT_EQ(table(r),
            (Lines{"actor.weights need need need - need", "actor.adapter need need - - write",
                   "actor.grads - - - - write", "actor.optimizer - - - - write",
                   "rollout.kv write drop drop drop drop", "reward.weights - - - need -"}));
  EXPECT_TRUE(r.find(PhaseId::kReferenceLogProbs)->adapter_off);
  EXPECT_EQ(r.find(PhaseId::kReferenceLogProbs)->model, ModelId::kActor);
  EXPECT_EQ(r.find(ModelId::kCritic), nullptr);
  EXPECT_TRUE(r.frozen({TagKind::kWeights, ModelId::kActor}));
}

TEST(Recipe, NoReferenceWithoutATermThatUsesIt) {
  Job job = job_of(Task::kGrpo);
  job.algorithm.use_kl_in_reward = false;
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"generate", "rewards", "train_actor"}));
  EXPECT_EQ(recipe_of(job).find(PhaseId::kReferenceLogProbs), nullptr);
}

TEST(Recipe, OneUpdateComputesNoOldLogProbabilitiesUnlessTheyAreRead) {
  Job job = job_of(Task::kGrpo);
  job.algorithm.use_kl_in_reward = false;
  job.data.train_batch_size = 64;
  const auto computes = [](const Job& of) {
    return recipe_of(of).find(PhaseId::kActorLogProbs) != nullptr;
  };
  for (const std::int64_t prompts : {0, 64}) {
    job.actor.ppo_mini_batch_size = prompts;
    EXPECT_FALSE(computes(job));
    EXPECT_TRUE(job.old_log_probs_are_current());
  }
  const auto with = [&](const auto& change) {
    Job other = job;
    change(other);
    return computes(other);
  };
  EXPECT_TRUE(with([](Job& j) { j.actor.ppo_mini_batch_size = 32; }));
  EXPECT_TRUE(with([](Job& j) { j.actor.ppo_epochs = 2; }));
  EXPECT_TRUE(with([](Job& j) { j.algorithm.use_kl_in_reward = true; }));
  EXPECT_TRUE(with([](Job& j) { j.rollout.calculate_log_probs = true; }));
  EXPECT_TRUE(with([](Job& j) { j.algorithm.rollout_correction.rollout_is = "token"; }));
  EXPECT_FALSE(with([](Job& j) { j.algorithm.rollout_correction.bypass_mode = true; }));
  const auto validated = [](Job& j) {
    j.actor.use_kl_loss = true;
    j.data.val_files = {"prompts.jsonl"};
  };
  EXPECT_FALSE(with(validated));
  EXPECT_TRUE(with([&](Job& j) {
    validated(j);
    j.rollout.val_kwargs.do_sample = true;
  }));
}

TEST(Recipe, RemaxDecodesAndScoresABaseline) {
  Job job = job_of(Task::kGrpo);
  job.algorithm.adv_estimator = AdvantageEstimator::kRemax;
  const Recipe r = recipe_of(job);
  EXPECT_EQ(phases(r), (Lines{"generate", "generate_baseline", "actor_logp", "ref_logp", "rewards",
                              "baseline_rewards", "train_actor"}));
  EXPECT_EQ(
      table(r),
      (Lines{"actor.weights need need need - - - write", "actor.grads - - - - - - write",
             "actor.optimizer - - - - - - write", "rollout.kv write write drop drop drop drop drop",
             "reference.weights - - - need - - -", "reward.weights - - - - need need -"}));
  EXPECT_TRUE(r.find(PhaseId::kGenerateBaseline)->baseline);
  EXPECT_FALSE(r.find(PhaseId::kGenerate)->baseline);
}

TEST(Recipe, BaselinesComeBehindWhatDynamicSamplingRepeats) {
  Job job = job_of(Task::kGrpo);
  job.algorithm.adv_estimator = AdvantageEstimator::kRemax;
  job.algorithm.filter_groups.enable = true;
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"generate", "rewards", "generate_baseline", "actor_logp",
                                           "ref_logp", "baseline_rewards", "train_actor"}));
  job.algorithm.filter_groups.metric = "seq_final_reward";  // and with it the KL
  EXPECT_EQ(phases(recipe_of(job)),
            (Lines{"generate", "rewards", "actor_logp", "ref_logp", "generate_baseline",
                   "baseline_rewards", "train_actor"}));
}

TEST(Recipe, DpoHasTheReferenceInAPhaseOfItsOwn) {
  Job job = job_of(Task::kDpo);
  job.algorithm.use_kl_in_reward = false;
  const Recipe r = recipe_of(job);
  EXPECT_EQ(phases(r), (Lines{"ref_logp", "train", "validate"}));
  EXPECT_EQ(table(r), (Lines{"actor.weights - write need", "actor.grads - write -",
                             "actor.optimizer - write -", "reference.weights need - -"}));
  EXPECT_EQ(r.find(ModelId::kReference)->path, "actor");
  job.reference_model.path = "other";
  EXPECT_EQ(recipe_of(job).find(ModelId::kReference)->path, "other");
  job.actor_model.lora.rank = 4;
  EXPECT_NE(recipe_of(job).find(ModelId::kReference), nullptr) << "another folder than the base";
  job.reference_model.path.clear();
  const Recipe adapted = recipe_of(job);
  EXPECT_EQ(adapted.find(ModelId::kReference), nullptr);
  EXPECT_TRUE(adapted.find(PhaseId::kReferenceLogProbs)->adapter_off);
}

TEST(Recipe, AReferenceThatRunsOnceIsGivenUpBeforeTheStep) {
  Job job = job_of(Task::kDpo);
  job.algorithm.use_kl_in_reward = false;
  job.dpo.precompute_ref_log_probs = true;
  for (const std::int64_t rank : {0, 4}) {
    job.actor_model.lora.rank = rank;
    const Recipe r = recipe_of(job);
    EXPECT_EQ(phases(r), (Lines{"train", "validate", "ref_logp"}));
    const Phase& once = r.phases.back();
    EXPECT_TRUE(once.runs_once());
    EXPECT_FALSE(once.adapter_off) << "it comes before the actor";
    EXPECT_EQ(table(r).back(), "reference.weights drop drop need");
    EXPECT_EQ(r.find(ModelId::kReference)->path, "actor");
  }
  job.task = Task::kSft;
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"train", "validate"}));
}

TEST(Recipe, SupervisedTasksTrainAndValidate) {
  const Job sft = job_of(Task::kSft);
  EXPECT_EQ(phases(recipe_of(sft)), (Lines{"train", "validate"}));
  EXPECT_EQ(table(recipe_of(sft)),
            (Lines{"actor.weights write need", "actor.grads write -", "actor.optimizer write -"}));
  Job reward = job_of(Task::kReward);
  reward.actor_model.lora.rank = 4;
  const Recipe r = recipe_of(reward);
  EXPECT_EQ(table(r), (Lines{"reward.weights need need", "reward.adapter write need",
                             "reward.grads write -", "reward.optimizer write -"}));
  EXPECT_EQ(r.find(ModelId::kReward)->head, Head::kScalar);
  EXPECT_EQ(r.find(ModelId::kReward)->path, "actor");
  EXPECT_EQ(r.find(PhaseId::kTrain)->body, Body::kPairUpdate);
}

TEST(Recipe, FunctionsInsteadOfARewardModelNeedNoPhase) {
  Job job = job_of(Task::kGrpo);
  job.reward_model.path.clear();
  job.reward.functions.emplace_back();
  const Recipe r = describe(job);
  EXPECT_EQ(r.find(ModelId::kReward), nullptr);
  EXPECT_EQ(r.find(PhaseId::kRewards), nullptr);
  EXPECT_NE(r.find(PhaseId::kTrainActor), nullptr);
  job.reward_model.path = "reward";  // both
  EXPECT_NE(describe(job).find(PhaseId::kRewards), nullptr);
}

TEST(Recipe, AnEvaluationGeneratesAndScores) {
  Job job = job_of(Task::kEval);
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"generate", "rewards"}));
  EXPECT_EQ(table(recipe_of(job)),
            (Lines{"actor.weights need -", "rollout.kv write drop", "reward.weights - need"}));
  EXPECT_TRUE(recipe_of(job).trained().empty());
  job.actor_model.lora.rank = 8;  // a training file's; the checkpoint holds them
  job.reward_model.path.clear();
  EXPECT_EQ(table(recipe_of(job)), (Lines{"actor.weights need", "rollout.kv write"}));
  EXPECT_TRUE(job.validate().ok()) << "rows say how they are scored";
}

TEST(Recipe, ARolloutThatHasACopyOfTheWeightsWakesUpFirst) {
  Job job = job_of(Task::kGrpo);
  job.reward_model.path.clear();
  job.reward.functions.emplace_back();
  job.algorithm.use_kl_in_reward = false;
  job.rollout.colocation = Colocation::kWhole;
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"wake_up", "generate", "train_actor"}));
  const Lines whole = {"actor.weights need - write", "actor.rollout_weights write need drop",
                       "actor.grads - - write", "actor.optimizer - - write",
                       "rollout.kv need write drop"};
  EXPECT_EQ(table(recipe_of(job)), whole);
  EXPECT_EQ(job.residency(), Residency::kAuto);
  job.rollout.colocation = Colocation::kResident;
  EXPECT_EQ(table(recipe_of(job)), whole);
  EXPECT_EQ(job.residency(), Residency::kAll);
  job.rollout.colocation = Colocation::kReload;
  const Recipe reload = recipe_of(job);
  EXPECT_EQ(phases(reload), (Lines{"store_weights", "wake_up", "generate", "train_actor"}));
  EXPECT_EQ(table(reload),
            (Lines{"actor.weights need - - write", "actor.rollout_weights write write need drop",
                   "actor.grads - - - write", "actor.optimizer - - - write",
                   "rollout.kv drop need write drop"}));
  EXPECT_TRUE(reload.stores_weights(ModelId::kActor));
  job.trainer.experience = "read";
  EXPECT_EQ(phases(recipe_of(job)), (Lines{"train_actor"})) << "nothing is generated";
}

TEST(Recipe, UnknownNamesAreErrors) {
  EXPECT_EQ(parse_task("dqo").status().message(),
            "task is \"dqo\"; it can be sft, reward, ppo, grpo, dpo, eval");
  for (const std::string& name : task_names()) {
    const Result<Task> task = parse_task(name);
    ASSERT_TRUE(task.ok());
    EXPECT_EQ(to_string(*task), name);
  }
  EXPECT_FALSE(parse_update_choice("often").ok());
  for (const std::string& name : update_choice_names()) {
    const Result<UpdateChoice> choice = parse_update_choice(name);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(to_string(*choice), name);
  }
}

TEST(Recipe, PhasesHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kPhases; ++i) names.insert(to_string(static_cast<PhaseId>(i)));
  EXPECT_EQ(names.size(), kPhases);
}

TEST(Recipe, ADividedUpdateNeedsItsStatesAndItsActivationsInTurn) {
  Job job = job_of(Task::kPpo);
  job.data.train_batch_size = 64;
  job.actor.ppo_mini_batch_size = 16;
  job.actor.ppo_epochs = 3;
  job.critic.ppo_mini_batch_size = 32;
  StepModes modes;
  modes.of(ModelId::kActor).update = UpdateMode::kSplit;
  modes.of(ModelId::kCritic).update = UpdateMode::kStreamed;
  const Recipe r = describe(job, modes);
  EXPECT_EQ(phases(r),
            (Lines{"generate", "actor_logp", "ref_logp", "values", "rewards", "backward_critic",
                   "update_critic", "backward_actor", "update_actor"}));
  const Lines rows = table(r);
  EXPECT_EQ(rows[0], "actor.weights need need - - - - - need write");
  EXPECT_EQ(rows[1], "actor.grads - - - - - - - write write");
  EXPECT_EQ(rows[2], "actor.optimizer - - - - - - - - write");
  EXPECT_EQ(rows[7], "critic.optimizer - - - - - - write - -");
  EXPECT_TRUE(r.find(ModelId::kCritic)->storage.streams_states());
  EXPECT_TRUE(r.find(PhaseId::kUpdateCritic)->storage.streams_states());
  EXPECT_FALSE(r.find(PhaseId::kUpdateActor)->storage.streams_states());
  EXPECT_FALSE(r.frozen({TagKind::kOptimizer, ModelId::kCritic}));
  EXPECT_EQ(r.find(PhaseId::kBackwardActor)->times, 12);
  EXPECT_EQ(r.find(PhaseId::kUpdateActor)->times, 12);
  EXPECT_EQ(r.find(PhaseId::kUpdateCritic)->times, 2);
  EXPECT_EQ(r.find(PhaseId::kTrainActor), nullptr);
}

TEST(Recipe, AnAdaptersUpdateLeavesTheBase) {
  Job job = job_of(Task::kSft);
  job.actor_model.lora.rank = 4;
  StepModes modes;
  modes.of(ModelId::kActor).update = UpdateMode::kSplit;
  EXPECT_EQ(table(describe(job, modes)),
            (Lines{"actor.weights need - need", "actor.adapter need write need",
                   "actor.grads write write -", "actor.optimizer - write -"}));
}

}  // namespace
}  // namespace neap::spec
