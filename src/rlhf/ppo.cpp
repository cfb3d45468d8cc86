// PPO with a critic, and GRPO without one: the cycle of phases that the memory plan is made for.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "rlhf/core_algos.h"
#include "rlhf/experience.h"
#include "rlhf/judge.h"
#include "rlhf/stage.h"
#include "train/dataset.h"
#include "train/random.h"

namespace neap::rlhf {
namespace {

constexpr std::uint64_t kRolloutStream = 0x726f6c6cULL, kValidationStream = 0x76616cULL;
constexpr const char* kStateFile = "ppo.json";

// Numbers of the micro batches of one update: each is a mean over its mini-batches.
class Averages {
 public:
  void add(const std::string& name, double value, double weight = 1) {
    auto& [sum, count] = sums_[name];
    sum += value * weight;
    count += weight;
  }
  void put(Metrics& metrics) const {
    for (const auto& [name, entry] : sums_) metrics[name] = entry.first / entry.second;
  }

 private:
  std::map<std::string, std::pair<double, double>> sums_;
};

class PpoStage final : public Stage {
 public:
  explicit PpoStage(Context& context);

  void load() override {
    for (train::Role* role : roles()) role->load();
  }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }
  Metrics train_step(std::int64_t step) override;
  [[nodiscard]] bool can_validate() const override { return !held_out_.empty(); }
  Validation validate() override;
  void save(const std::filesystem::path& folder) override;
  void restore(const std::filesystem::path& folder) override;

 private:
  [[nodiscard]] const plan::Job& job() const { return context_.job; }
  [[nodiscard]] std::vector<train::Role*> roles();
  [[nodiscard]] train::RoleSpec spec(const char* role, const std::string& path, plan::Head head);
  [[nodiscard]] std::vector<train::Tokens> read(const std::vector<std::string>& files) const;
  /// Everything up to the advantages.
  [[nodiscard]] Experience make_experience(std::int64_t step, Metrics& metrics);
  void add_log_probs(Experience& e, Metrics& metrics);
  void add_advantages(Experience& e, Metrics& metrics);
  void train_critic(const Experience& e, std::int64_t step, Metrics& metrics);
  void train_actor(const Experience& e, std::int64_t step, Metrics& metrics);
  /// Runs `micro` for every micro batch of every mini-batch and epoch; an optimizer step each.
  template <class Micro>
  void update(train::Role& role, const Experience& e, std::int64_t step,
              const plan::OptimizerConfig& optim, std::int64_t epochs, std::int64_t mini_batch,
              std::int64_t micro_batch, double grad_clip, const char* prefix, Metrics& metrics,
              const Micro& micro);
  static void describe(const Experience& e, std::int64_t longest, Metrics& metrics);

  Context& context_;
  train::Role actor_, reward_;
  std::optional<train::Role> reference_, critic_;
  std::vector<train::Tokens> prompts_;
  std::vector<train::Tokens> held_out_;
  train::BatchOrder order_;
  KlController kl_control_;
  std::optional<Judge> judge_;
};

train::RoleSpec PpoStage::spec(const char* role, const std::string& path, plan::Head head) {
  train::RoleSpec out;
  out.role = role;
  out.folder = job().resolve(path);
  out.head = head;
  out.seed = static_cast<std::uint64_t>(job().trainer.seed);
  if (out.role == "actor") {
    out.trained = true;
    out.lora = job().actor_model.lora;
    out.optimizer = job().actor.optim;
  } else if (out.role == "critic") {
    out.trained = true;
    out.lora = job().critic.model.lora;
    out.optimizer = job().critic.optim;
  }
  return out;
}

PpoStage::PpoStage(Context& context)
    : context_(context),
      actor_(context.runtime,
             spec("actor", context.job.actor_model.path, plan::Head::kLanguageModel)),
      reward_(context.runtime, spec("reward", context.job.reward_model.path, plan::Head::kScalar)),
      prompts_(read(context.job.data.train_files)),
      order_(prompts_.size(), static_cast<std::size_t>(context.job.data.train_batch_size),
             context.job.data.shuffle, static_cast<std::uint64_t>(context.job.trainer.seed)),
      kl_control_(context.job.algorithm) {
  if (job().uses_reference() && !job().reference_is_actor_base()) {
    reference_.emplace(context.runtime,
                       spec("reference", job().reference_path(), plan::Head::kLanguageModel));
  }
  if (job().has_critic()) {
    critic_.emplace(context.runtime, spec("critic", job().critic_path(), plan::Head::kScalar));
  }
  if (!job().data.val_files.empty()) held_out_ = read(job().data.val_files);
  if (!job().trainer.lexicon.empty()) judge_ = Judge::load(job().resolve(job().trainer.lexicon));
}

std::vector<train::Role*> PpoStage::roles() {
  std::vector<train::Role*> out = {&actor_, &reward_};
  if (reference_) out.push_back(&*reference_);
  if (critic_) out.push_back(&*critic_);
  return out;
}

std::vector<train::Tokens> PpoStage::read(const std::vector<std::string>& files) const {
  std::vector<train::Tokens> out;
  for (const train::TextRow& row :
       train::read_rows(resolve_all(job(), files), {job().data.prompt_key})) {
    out.push_back(encode_limited(context_, row.fields[0], row.where, job().data.max_prompt_length,
                                 "data.max_prompt_length"));
  }
  return out;
}

Metrics PpoStage::train_step(std::int64_t step) {
  Metrics metrics;
  const Experience e = make_experience(step, metrics);
  if (critic_) {
    const Stopwatch watch(metrics, "update_critic");
    train_critic(e, step, metrics);
  }
  {
    const Stopwatch watch(metrics, "update_actor");
    train_actor(e, step, metrics);
  }
  describe(e, job().data.max_response_length, metrics);
  return metrics;
}

Experience PpoStage::make_experience(std::int64_t step, Metrics& metrics) {
  Experience e;
  std::vector<train::Tokens> prompts;
  for (const std::size_t row : order_.batch(step)) prompts.push_back(prompts_[row]);
  {
    const Stopwatch watch(metrics, "gen");
    const auto seed = static_cast<std::uint64_t>(job().trainer.seed);
    generate_responses(context_, actor_, prompts, job().rollout.n,
                       train::random_key({seed, kRolloutStream, static_cast<std::uint64_t>(step)}),
                       e);
  }
  add_log_probs(e, metrics);
  if (critic_) {
    const Stopwatch watch(metrics, "values");
    e.values = response_values(context_, *critic_, e.sequences);
  }
  {
    const Stopwatch watch(metrics, "reward");
    e.scores = response_scores(context_, reward_, e.sequences);
    e.token_scores = place_at_end(e.scores, e.sequences.mask);
  }
  const Stopwatch watch(metrics, "adv");
  add_advantages(e, metrics);
  return e;
}

void PpoStage::add_log_probs(Experience& e, Metrics& metrics) {
  {
    const Stopwatch watch(metrics, "old_log_prob");
    TokenLogProbs actor = response_log_probs(context_, actor_.model(), e.sequences, "actor_logp",
                                             job().rollout.log_prob_micro_batch_size_per_gpu, true);
    e.old_log_probs = std::move(actor.log_probs);
    e.entropy = std::move(actor.entropy);
  }
  if (!job().uses_reference()) return;
  const Stopwatch watch(metrics, "ref");
  model::Transformer& reference = reference_ ? reference_->model() : actor_.base();
  e.ref_log_probs = response_log_probs(context_, reference, e.sequences, "ref_logp",
                                       job().reference_micro_batch(), false)
                        .log_probs;
}

void PpoStage::add_advantages(Experience& e, Metrics& metrics) {
  const plan::AlgorithmConfig& algorithm = job().algorithm;
  const at::Tensor& mask = e.sequences.mask;
  at::Tensor rewards = e.token_scores;
  if (algorithm.use_kl_in_reward) {
    const double beta = kl_control_.value();
    const ShapedReward shaped = apply_kl_penalty(rewards, e.old_log_probs, e.ref_log_probs, mask,
                                                 beta, algorithm.kl_penalty);
    rewards = shaped.token_rewards;
    kl_control_.update(shaped.kl, mask.size(0));
    metrics["actor/reward_kl_penalty"] = shaped.kl;
    metrics["actor/reward_kl_penalty_coeff"] = beta;
  }
  Advantages out;
  if (algorithm.adv_estimator == "gae") {
    out = gae_advantages(rewards, e.values, mask, algorithm.gamma, algorithm.lam);
  } else if (algorithm.adv_estimator == "grpo") {
    out = grpo_advantages(rewards, mask, e.group, algorithm.norm_adv_by_std_in_grpo);
  } else if (algorithm.adv_estimator == "rloo") {
    out = rloo_advantages(rewards, mask, e.group);
  } else if (algorithm.adv_estimator == "reinforce_plus_plus") {
    out = reinforce_plus_plus_advantages(rewards, mask, algorithm.gamma);
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                format("algorithm.adv_estimator \"{}\" is unknown", algorithm.adv_estimator));
  }
  e.advantages = std::move(out.advantages);
  e.returns = std::move(out.returns);
  summarize(metrics, "critic/rewards", rewards.sum(-1));
  summarize(metrics, "critic/advantages", e.advantages, mask);
  summarize(metrics, "critic/returns", e.returns, mask);
}

template <class Micro>
void PpoStage::update(train::Role& role, const Experience& e, std::int64_t step,
                      const plan::OptimizerConfig& optim, std::int64_t epochs,
                      std::int64_t mini_batch, std::int64_t micro_batch, double grad_clip,
                      const char* prefix, Metrics& metrics, const Micro& micro) {
  const std::int64_t sequences = e.sequences.size();
  const std::int64_t updates_per_step = epochs * (sequences / mini_batch);
  train::AdamW& optimizer = role.optimizer();
  Averages averages;
  double lr = 0;
  for (std::int64_t update = 0; update < updates_per_step; ++update) {
    const std::int64_t first = update * mini_batch % sequences;
    const LossScale scale = LossScale::of(e.sequences.mask.narrow(0, first, mini_batch));
    optimizer.zero_grads();
    for (std::int64_t at = first; at < first + mini_batch; at += micro_batch) {
      micro(at, micro_batch, scale, averages);
    }
    lr = train::learning_rate(optim, step * updates_per_step + update,
                              context_.total_steps * updates_per_step);
    averages.add(format("{}/grad_norm", prefix), optimizer.clip_grads(grad_clip));
    optimizer.step(lr);
  }
  metrics[format("{}/lr", prefix)] = lr;
  averages.put(metrics);
}

void PpoStage::train_critic(const Experience& e, std::int64_t step, Metrics& metrics) {
  const plan::CriticConfig& config = job().critic;
  const at::Device device = context_.runtime.device();
  model::Transformer& model = critic_->model();
  const auto phase = context_.runtime.phase("train_critic");
  update(*critic_, e, step, config.optim, config.ppo_epochs,
         config.ppo_mini_batch_size * job().rollout.n, config.ppo_micro_batch_size_per_gpu,
         config.grad_clip, "critic", metrics,
         [&](std::int64_t at, std::int64_t count, const LossScale& scale, Averages& averages) {
           const train::Sequences micro = e.sequences.slice(at, count, device);
           const auto part = [&](const at::Tensor& t) { return t.narrow(0, at, count).to(device); };
           const auto tape =
               model.forward_train(model::Batch::padded(micro.tokens),
                                   {config.model.enable_gradient_checkpointing, nullptr});
           const at::Tensor rows = micro.rows();
           at::Tensor values =
               model.scores(tape->hidden(), rows).view_as(micro.mask).requires_grad_();
           const ValueLoss loss = value_loss(values, part(e.returns), part(e.values), micro.mask,
                                             config.cliprange_value, config.loss_agg_mode, scale);
           const at::Tensor d_values = torch::autograd::grad({loss.loss}, {values})[0];
           tape->backward(model.scores_backward(tape->hidden(), rows, d_values.flatten()));
           const double weight = micro.mask.sum().item<double>();
           // The loss is a share of the mini-batch's: its micro batches add up.
           const double batches =
               static_cast<double>(config.ppo_mini_batch_size * job().rollout.n / count);
           averages.add("critic/vf_loss", loss.loss.item<double>() * batches);
           averages.add("critic/vf_clipfrac", loss.clip_fraction.item<double>(), weight);
           averages.add("critic/vpred_mean",
                        masked_mean(values.detach(), micro.mask).item<double>(), weight);
         });
}

void PpoStage::train_actor(const Experience& e, std::int64_t step, Metrics& metrics) {
  const plan::ActorConfig& config = job().actor;
  const at::Device device = context_.runtime.device();
  model::Transformer& model = actor_.model();
  model::LogProbOptions options;
  options.temperature = job().rollout.temperature > 0 ? job().rollout.temperature : 1;
  options.entropy = config.entropy_coeff != 0;
  const auto phase = context_.runtime.phase("train_actor");
  update(
      actor_, e, step, config.optim, config.ppo_epochs,
      config.ppo_mini_batch_size * job().rollout.n, config.ppo_micro_batch_size_per_gpu,
      config.grad_clip, "actor", metrics,
      [&](std::int64_t at, std::int64_t count, const LossScale& scale, Averages& averages) {
        const train::Sequences micro = e.sequences.slice(at, count, device);
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, at, count).to(device); };
        const auto tape =
            model.forward_train(model::Batch::padded(micro.tokens),
                                {job().actor_model.enable_gradient_checkpointing, nullptr});
        const at::Tensor rows = micro.rows();
        const at::Tensor targets = micro.targets.flatten();
        const model::LogProbs out = model.log_probs(tape->hidden(), rows, targets, options);
        const at::Tensor log_probs = out.log_probs.view_as(micro.mask).detach().requires_grad_();
        std::vector<at::Tensor> leaves = {log_probs};
        const PolicyLoss policy = policy_loss(part(e.old_log_probs), log_probs, part(e.advantages),
                                              micro.mask, config, scale);
        at::Tensor loss = policy.loss;
        if (options.entropy) {
          leaves.push_back(out.entropy.view_as(micro.mask).detach().requires_grad_());
          loss = loss - config.entropy_coeff *
                            aggregate_loss(leaves[1], micro.mask, config.loss_agg_mode, scale);
        }
        const double batches =
            static_cast<double>(config.ppo_mini_batch_size * job().rollout.n / count);
        if (config.use_kl_loss) {
          const at::Tensor kl =
              aggregate_loss(kl_penalty(log_probs, part(e.ref_log_probs), config.kl_loss_type),
                             micro.mask, config.loss_agg_mode, scale);
          loss = loss + config.kl_loss_coef * kl;
          averages.add("actor/kl_loss", kl.item<double>() * batches);
        }
        const auto grads = torch::autograd::grad({loss}, leaves);
        tape->backward(
            model.log_probs_backward(tape->hidden(), rows, targets, out, grads[0].flatten(),
                                     options.entropy ? grads[1].flatten() : at::Tensor(), options));
        const double weight = micro.mask.sum().item<double>();
        averages.add("actor/pg_loss", policy.loss.item<double>() * batches);
        averages.add("actor/pg_clipfrac", policy.clip_fraction.item<double>(), weight);
        averages.add("actor/pg_clipfrac_lower", policy.clip_fraction_lower.item<double>(), weight);
        averages.add("actor/ppo_kl", policy.ppo_kl.item<double>(), weight);
      });
  if (config.use_kl_loss) metrics["actor/kl_coef"] = config.kl_loss_coef;
}

void PpoStage::describe(const Experience& e, std::int64_t longest, Metrics& metrics) {
  const at::Tensor& mask = e.sequences.mask;
  const at::Tensor lengths = mask.sum(-1);
  summarize(metrics, "response_length", lengths);
  metrics["response_length/clip_ratio"] =
      lengths.ge(static_cast<double>(longest)).to(at::kDouble).mean().item<double>();
  summarize(metrics, "prompt_length", e.sequences.last + 1 - lengths);
  summarize(metrics, "critic/score", e.scores);
  metrics["actor/entropy"] = masked_mean(e.entropy, mask).item<double>();
  if (e.values.defined()) {
    summarize(metrics, "critic/values", e.values, mask);
    const at::Tensor returns = e.returns.masked_select(mask.gt(0));
    const at::Tensor errors = returns - e.values.masked_select(mask.gt(0));
    metrics["critic/vf_explained_var"] =
        1 - errors.var().item<double>() / (returns.var().item<double>() + 1e-5);
  }
  metrics["perf/total_num_tokens"] = (e.sequences.last + 1).sum().item<double>();
}

Validation PpoStage::validate() {
  Validation out;
  Experience e;
  const auto seed = static_cast<std::uint64_t>(job().trainer.seed);
  generate_responses(context_, actor_, held_out_, 1, train::random_key({seed, kValidationStream}),
                     e);
  Metrics timings;  // of no interest here
  add_log_probs(e, timings);
  e.scores = response_scores(context_, reward_, e.sequences);
  summarize(out.metrics, "val/score", e.scores);
  out.metrics["val/response_length"] = e.sequences.mask.sum(-1).mean().item<double>();
  if (e.ref_log_probs.defined()) {
    const at::Tensor kl = (e.old_log_probs - e.ref_log_probs) * e.sequences.mask;
    out.metrics["val/kl_per_response"] = kl.sum(-1).mean().item<double>();
    out.metrics["val/kl_per_token"] = masked_mean(kl, e.sequences.mask).item<double>();
  }
  double friendly = 0;
  for (std::size_t i = 0; i < e.responses.size(); ++i) {
    train::Tokens tokens = e.responses[i].tokens;
    if (e.responses[i].ended) tokens.pop_back();
    Sample sample{context_.tokenizer.decode(e.prompts[i]), context_.tokenizer.decode(tokens), ""};
    if (judge_) {
      const Judge::Verdict verdict = judge_->judge(sample.response);
      friendly += verdict == Judge::Verdict::kFriendly ? 1 : 0;
      sample.verdict = Judge::name(verdict);
    }
    if (out.samples.size() < static_cast<std::size_t>(job().trainer.val_samples)) {
      out.samples.push_back(std::move(sample));
    }
  }
  if (judge_) {
    out.metrics["val/friendly_share"] = friendly / static_cast<double>(e.responses.size());
  }
  return out;
}

void PpoStage::save(const std::filesystem::path& folder) {
  actor_.save(folder / "actor", context_.tokenizer_folder);
  if (critic_) critic_->save(folder / "critic", context_.tokenizer_folder);
  Json state = Json::object();
  state["kl_coef"] = kl_control_.value();
  throw_if_error(write_file_atomic(folder / kStateFile, state.dump(1) + "\n"));
}

void PpoStage::restore(const std::filesystem::path& folder) {
  reward_.load();
  if (reference_) reference_->load();
  actor_.restore(folder / "actor");
  if (critic_) critic_->restore(folder / "critic");
  const std::filesystem::path file = folder / kStateFile;
  const Json state =
      value_or_throw(parse_json(value_or_throw(read_file(file, 1_MiB)), file.string()));
  if (!state.is_object() || !state.contains("kl_coef") || !state["kl_coef"].is_number()) {
    throw Error(ErrorCode::kCorrupt, format("{}: \"kl_coef\" is missing", file.string()));
  }
  kl_control_.restore(state["kl_coef"].get<double>());
}

}  // namespace

std::unique_ptr<Stage> make_ppo_stage(Context& context) {
  return std::make_unique<PpoStage>(context);
}

}  // namespace neap::rlhf
