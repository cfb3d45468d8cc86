// Random jobs: the passes of every phase on libtorch and over counting operations ask for the same
// tensors, request by request.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "model/transformer.h"
#include "plan/phase_passes.h"
#include "recording_allocator.h"

namespace neap::plan {
namespace {

using model::AtenOps;
using step::Dtype;

// Models and batches of a job with memory of their own, kept from one phase to the next.
class AtenWorld {
 public:
  using Ops = AtenOps;
  explicit AtenWorld(Dtype dtype) : ops_(at::kCPU), dtype_(model::to_aten(dtype)) {}
  [[nodiscard]] AtenOps& ops() { return ops_; }

  [[nodiscard]] const step::Weights<at::Tensor>& weights(const ModelRole& role) {
    const bridge::HostScope outside;
    return model_of(role).transformer->weights();
  }
  [[nodiscard]] std::vector<step::TrainedUnit<at::Tensor>> units(const ModelRole& role) {
    const bridge::HostScope outside;
    Model& m = model_of(role);
    const auto& weights = role.lora.rank > 0 ? m.adapters : m.weights;
    std::vector<step::TrainedUnit<at::Tensor>> out;
    for (std::size_t u = 0; u < weights.size(); ++u) {
      const auto state = [&] { return at::zeros_like(weights[u], at::kFloat); };
      out.push_back({weights[u], m.grads[u], state(), state(),
                     dtype_ == at::kFloat ? at::Tensor() : state()});
    }
    return out;
  }
  [[nodiscard]] step::KvCache<at::Tensor> cache(const ModelRole& role, std::int64_t batch,
                                                std::int64_t tokens) {
    const bridge::HostScope outside;
    return model::KvCache::over(
        at::zeros({model::KvCache::elements(role.shape, batch, tokens)}, dtype_), role.shape, batch,
        tokens);
  }
  [[nodiscard]] at::Tensor host(const step::Shape& shape, Dtype dtype, std::int64_t value) {
    const bridge::HostScope outside;
    return at::full({shape.begin(), shape.rank()}, value, model::to_aten(dtype));
  }

 private:
  struct Model {
    std::vector<at::Tensor> weights, adapters, grads;
    std::unique_ptr<model::Transformer> transformer;
  };
  // By what the passes see of a role: the reference shares the actor's base without its adapter.
  Model& model_of(const ModelRole& role) {
    Model& m = models_[role.name + (role.lora.rank > 0 ? "+" : "")];
    if (m.transformer) return m;
    for (const spec::FlatUnit& unit : spec::flat_layout(role.shape, role.head))
      m.weights.push_back(at::rand({unit.elements}, at::kFloat).mul_(0.02).to(dtype_));
    std::optional<model::Lora> lora;
    model::FlatTensors base{m.weights, {}};
    if (role.lora.rank > 0) {
      for (const spec::FlatUnit& unit : spec::lora_layout(role.shape, role.head, role.lora))
        m.adapters.push_back(at::zeros({unit.elements}, dtype_));
      lora = model::Lora{role.lora, 16, {m.adapters, {}}};
    }
    if (role.trained) {
      for (const spec::FlatUnit& unit : trained_units(role))
        m.grads.push_back(at::zeros({unit.elements}, at::kFloat));
      (lora ? lora->adapters.grads : base.grads) = m.grads;
    }
    m.transformer = std::make_unique<model::Transformer>(role.shape, role.head, base, lora);
    return m;
  }

  AtenOps ops_;
  at::ScalarType dtype_;
  std::map<std::string, Model> models_;
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + between(0, static_cast<std::int64_t>(list.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

spec::Architecture random_architecture(Dice& dice) {
  spec::Architecture a;
  a.vocab_size = dice.between(50, 900);
  a.head_dim = dice.one_of({8, 16, 20, 32});
  a.num_key_value_heads = dice.between(1, 3);
  a.num_attention_heads = a.num_key_value_heads * dice.between(1, 3);
  a.hidden_size = a.embedding_dim = dice.between(3, 12) * 8;
  a.intermediate_size = dice.between(4, 20) * 8;
  a.num_hidden_layers = dice.between(1, 4);
  a.max_position_embeddings = 4096;
  a.gated = dice.chance(60);
  a.activation = dice.one_of({spec::Activation::kSilu, spec::Activation::kGelu,
                              spec::Activation::kGeluTanh, spec::Activation::kRelu});
  a.norm =
      dice.one_of({spec::NormKind::kLayerNorm, spec::NormKind::kRms, spec::NormKind::kRmsOffset});
  if (dice.chance(60)) {
    a.rotary.dimensions = dice.chance(50) ? a.head_dim : a.head_dim / 2;
  } else {
    a.learned_positions = true;
    a.position_offset = dice.one_of({0, 2});
  }
  if (dice.chance(30)) {
    a.num_key_value_heads = a.num_attention_heads;
    a.qkv = dice.one_of({spec::QkvLayout::kThirds, spec::QkvLayout::kPerHead});
    a.input_major = dice.chance(50);
    a.attention_bias = true;
  }
  // No model has both a fused projection and norms of heads.
  a.query_key_norm = a.qkv == spec::QkvLayout::kSeparate && dice.chance(35);
  a.attention_bias = a.attention_bias || dice.chance(50);
  a.attention_output_bias = dice.chance(50);
  a.mlp_bias = dice.chance(50);
  a.parallel_residual = dice.chance(20);
  if (!a.parallel_residual && dice.chance(30)) {
    a.placement = dice.chance(50) ? spec::NormPlacement{.before = true, .after = true}
                                  : spec::NormPlacement{.before = false, .over = true};
    a.final_norm = a.placement.before;
    if (!a.final_norm && dice.chance(50)) a.embedding_dim = a.hidden_size / 2;
  }
  if (dice.chance(20)) a.embedding_scale = 3.25;
  if (dice.chance(20)) a.logit_softcap = 30;
  a.tie_word_embeddings = dice.chance(50);
  return a;
}

ModelRole random_role(Dice& dice, const char* name, spec::Head head, bool trained) {
  ModelRole role;
  role.name = name;
  role.shape = random_architecture(dice);
  role.head = head;
  role.trained = trained;
  role.checkpointing = dice.chance(40);
  if (trained && dice.chance(30)) role.lora = {dice.between(1, 6), {"all-linear"}};
  return role;
}

struct RandomJob {
  spec::Job job;
  JobModels models;
  Dtype dtype;
};
RandomJob random_job(std::uint64_t seed) {
  Dice dice(seed);
  RandomJob out;
  spec::Job& job = out.job;
  out.dtype = dice.one_of({Dtype::kFloat32, Dtype::kBfloat16});
  job.task = dice.one_of({"sft", "reward", "ppo", "grpo"});
  job.data.max_prompt_length = dice.between(1, 40);
  job.data.max_response_length = dice.between(2, dice.chance(4) ? 900 : 60);
  const std::int64_t micro = dice.between(1, 4);
  job.data.micro_batch_size_per_gpu = micro;
  job.data.train_batch_size = micro * dice.between(1, 3);
  job.rollout.n = job.task == "grpo" ? 2 : 1;
  job.rollout.temperature = dice.one_of({0.0, 0.7, 1.0});
  job.rollout.top_p = dice.chance(30) ? 0.9 : 1.0;
  job.rollout.top_k = dice.chance(30) ? 5 : -1;
  job.rollout.log_prob_micro_batch_size_per_gpu = dice.between(1, 4);
  job.actor.ppo_mini_batch_size = job.critic.ppo_mini_batch_size = job.data.train_batch_size;
  job.actor.ppo_micro_batch_size_per_gpu = job.critic.ppo_micro_batch_size_per_gpu = micro;
  job.actor.ppo_epochs = dice.between(1, 2);
  job.actor.entropy_coeff = dice.chance(40) ? 0.01 : 0;
  job.actor.use_kl_loss = dice.chance(50);
  job.actor.kl_loss_type = dice.one_of({"k1", "abs", "k2", "k3+", "low_var_kl"});
  for (std::string* mode : {&job.actor.loss_agg_mode, &job.critic.loss_agg_mode})
    *mode = dice.one_of(
        {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"});
  if (job.task == "reward") {
    out.models.reward = random_role(dice, "reward", spec::Head::kScalar, true);
    return out;
  }
  out.models.actor = random_role(dice, "actor", spec::Head::kLanguageModel, true);
  job.actor_model.lora.rank = out.models.actor->lora.rank;
  if (job.task == "sft") return out;
  out.models.reward = random_role(dice, "reward", spec::Head::kScalar, false);
  if (job.task == "ppo") out.models.critic = random_role(dice, "critic", spec::Head::kScalar, true);
  if (out.models.actor->lora.rank == 0) {
    out.models.reference = *out.models.actor;
    out.models.reference->name = "reference";
    out.models.reference->trained = false;
  }
  return out;
}

void compare(std::uint64_t seed) {
  const RandomJob r = random_job(seed);
  AtenWorld world(r.dtype);
  const spec::Recipe recipe = value_or_throw(spec::describe(r.job));
  for (const spec::Phase& phase : recipe.phases) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", phase " + std::string(to_string(phase.id)));
    testing::RecordingAllocator& recorder = testing::RecordingAllocator::instance();
    const at::NoGradGuard no_grad;
    const auto run = [&] {
      PhasePasses<AtenWorld> passes(world, r.job);
      passes.run(r.models, phase, 7);
    };
    recorder.start();
    run();
    const testing::Requests measured = recorder.stop();
    testing::RecordingSink sink;
    step::CountingOps ops(sink, {false, at::get_num_threads()}, 1 << 20);
    count_phase(ops, r.job, r.models, r.dtype, phase, 7);
    ASSERT_EQ(testing::difference(measured, sink.requests), "");
    ASSERT_TRUE(sink.empty());
  }
}

// NEAP_REQUEST_SEEDS=FIRST:COUNT runs other seeds.
TEST(Requests, OfThreeHundredRandomJobsAreThoseOfThePlan) {
  std::uint64_t first = 1, count = 300;
  if (const char* seeds = std::getenv("NEAP_REQUEST_SEEDS"); seeds != nullptr) {
    char* end = nullptr;
    first = std::strtoull(seeds, &end, 10);
    if (*end == ':') count = std::strtoull(end + 1, nullptr, 10);
  }
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    ASSERT_NO_FATAL_FAILURE(compare(seed));
  }
}

}  // namespace
}  // namespace neap::plan
