// The planner against published figures: ZeRO's table of model states, LLaMA's table of sizes,
// Korthikanti et al.'s activations, the usual KV cache formula.
#include <gtest/gtest.h>

#include <map>

#include "plan/counting/tags.h"
#include "plan/counting/transients.h"
#include "spec/model/tensor_parallel.h"
#include "step/counting/kernel_seconds.h"
#include "unit/plan/gpt_activations.h"

namespace neap::plan {
namespace {

ModelRole trained_actor(const spec::Architecture& shape) {
  ModelRole role;
  role.shape = shape;
  role.trained = true;
  return role;
}

// Gigabytes of each tag when one GPU trains `shape` in mixed precision.
std::map<std::string, double> planned_gigabytes(const ModelRole& role) {
  JobModels models;
  models.actor = role;
  spec::Job job;
  job.task = spec::Task::kSft;
  Target target;
  target.cuda = true;
  std::map<std::string, double> gigabytes;
  for (const TagPlan& tag : build_tags(job, spec::describe(job), models, target))
    gigabytes[tag.name()] = static_cast<double>(tag.bytes.count()) / 1e9;
  return gigabytes;
}

// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", table
// 1, model of 7.5 billion parameters: gigabytes a GPU on one GPU, and on 64 with the optimizer's
// states divided, the gradients too, the parameters too. What each step saves is 63/64 of its term.
TEST(Formulas, TagsAreTheTermsOfZerosTable) {
  constexpr double kOneGpu = 120, kOptimizer = 31.4, kGradients = 16.6, kParameters = 1.88;
  constexpr double kWhole = 64.0 / 63;
  const auto planned = planned_gigabytes(trained_actor(gpt2(36, 4096, 32)));  // 7.46 billion
  ASSERT_EQ(planned.size(), 3U);
  EXPECT_NEAR(planned.at("actor.optimizer"), (kOneGpu - kOptimizer) * kWhole, 0.9);
  EXPECT_NEAR(planned.at("actor.weights"), (kGradients - kParameters) * kWhole, 0.15);
  // Gradients add up in float32 here; the table's are half precision.
  EXPECT_NEAR(planned.at("actor.grads") / 2, (kOptimizer - kGradients) * kWhole, 0.15);
  // The same paper: GPT-2 of 1.5 billion (1.56) takes 3 GB of parameters and 24 GB of model states.
  const auto published = planned_gigabytes(trained_actor(gpt2(48, 1600, 25)));
  EXPECT_NEAR(published.at("actor.weights"), 3, 0.15);
  EXPECT_NEAR(published.at("actor.weights") + published.at("actor.grads") / 2 +
                  published.at("actor.optimizer"),
              24, 1.2);
}

// Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", table 2, with the released
// sizes of the MLP.
TEST(Formulas, WeightsAreTwiceLlamasPublishedParameters) {
  struct Published {
    double billions;
    std::int64_t hidden, intermediate, heads, layers;
  };
  for (const auto& [billions, hidden, intermediate, heads, layers] :
       {Published{6.7, 4096, 11008, 32, 32}, Published{13.0, 5120, 13824, 40, 40},
        Published{32.5, 6656, 17920, 52, 60}, Published{65.2, 8192, 22016, 64, 80}}) {
    const Json config = {{"model_type", "llama"},        {"vocab_size", 32000},
                         {"hidden_size", hidden},        {"intermediate_size", intermediate},
                         {"num_attention_heads", heads}, {"num_hidden_layers", layers}};
    const auto role = trained_actor(*spec::Architecture::from_json(config, "config.json"));
    EXPECT_NEAR(planned_gigabytes(role).at("actor.weights"), 2 * billions, 0.15 + 0.006 * billions);
  }
}

TEST(Formulas, BlocksKeepKorthikantisBytesLessDropout) {
  const std::int64_t s = 256, b = 4, h = 1024, heads = 16;
  const auto sbh = static_cast<double>(s * b * h);
  const auto kept = [&](spec::CheckpointMode mode) {
    return kept_a_block(gpt2(8, h, heads), mode, b, s) / sbh;
  };
  // Beside the formulas: a float32 a head and row of attention, and its kernel's seed and offset in
  // blocks of 512 bytes; two float32 a row of a norm whose output is kept.
  const double attention =
      4.0 * static_cast<double>(heads) / static_cast<double>(h) + 2 * 512 / sbh;
  const double norms = 2 * 2 * 4.0 / static_cast<double>(h);
  // 34 sbh with attention's scores computed again inside its kernel, less 2 dropout masks of a byte.
  EXPECT_NEAR(kept(spec::CheckpointMode::kNone), 34 - 2 + attention + norms, 1e-9);
  // Less two outputs of norms, 2 sbh each, and GELU's output, 8 sbh.
  EXPECT_NEAR(kept(spec::CheckpointMode::kSelective), 34 - 2 - 2 * 2 - 8 + attention, 1e-9);
  EXPECT_NEAR(kept(spec::CheckpointMode::kFull), 2, 1e-9);
}

// Table 2 of the same paper: sbh (10 + 24 / t) of ranks that divide heads and columns, and a t-th of all with
// sequence parallelism; scores are not kept, nor dropout's masks, of which one a rank would be whole.
TEST(Formulas, BlocksThatRanksDivideKeepKorthikantisBytes) {
  const std::int64_t s = 2048, b = 8, h = 1024, heads = 16;
  const auto sbh = static_cast<double>(s * b * h);
  for (const std::int64_t t : {2, 4, 8}) {
    const auto kept = [&](spec::CheckpointMode mode, bool rows) {
      spec::Architecture whole = gpt2(8, h, heads);
      whole.vocab_size = 50304;  // that t divides
      return kept_a_block(*spec::part_of(whole, {t, 0, rows}, "actor"), mode, b, s) / sbh;
    };
    const auto n = static_cast<double>(t);
    const double attention =
        4.0 * static_cast<double>(heads) / static_cast<double>(h) / n + 2 * 512 / sbh;
    const double norms = 2 * 2 * 4.0 / static_cast<double>(h);
    // Masks: two of a byte where hidden states are whole.
    EXPECT_NEAR(kept(spec::CheckpointMode::kNone, false), 10 - 2 + 24 / n + attention + norms,
                1e-9);
    EXPECT_NEAR(kept(spec::CheckpointMode::kNone, true), (34 - 2 + norms) / n + attention, 1e-9);
    EXPECT_NEAR(kept(spec::CheckpointMode::kFull, false), 2, 1e-9);
    EXPECT_NEAR(kept(spec::CheckpointMode::kFull, true), 2 / n, 1e-9);
  }
}

// FLOPs of a training step of a GPT-2 with cross entropy over all tokens.
double counted_flops(const ModelRole& role, std::int64_t b, std::int64_t s) {
  CountedMemory memory{cache::Settings{}};
  step::CountingOps ops(memory, {true, 2}, 2);
  const auto w = counted_weights(role, step::Dtype::kBfloat16);
  const auto tokens = step::CountedTensor::outside({b * s}, step::Dtype::kInt64);
  const auto weights = step::CountedTensor::outside({b * s}, step::Dtype::kFloat32);
  auto tape = step::forward_train(ops, w, step::of_one_length(tokens, s), role.checkpointing);
  auto loss = step::cross_entropy(ops, w, tape.hidden, {}, tokens, weights, {});
  step::backward(ops, w, std::move(tape), std::move(loss.d_hidden));
  return ops.work().flops;
}

TEST(Formulas, TrainingTakesKorthikantisFlops) {
  const std::int64_t batch = 4, length = 256, width = 1024, layers = 6;
  ModelRole role = trained_actor(gpt2(layers, width, 16));
  const auto flops = [&](spec::CheckpointMode mode) {
    role.checkpointing = spec::checkpointing(mode, role.shape);
    return counted_flops(role, batch, length);
  };
  const auto b = static_cast<double>(batch), s = static_cast<double>(length),
             h = static_cast<double>(width), l = static_cast<double>(layers),
             v = static_cast<double>(role.shape.vocab_size);
  // 72 b s l h^2 (1 + s / 6h + v / 12hl), where s / 6h are attention's 12 b s^2 h l over all pairs.
  // Causal kernels compute half of the pairs, and the scores once more in backward: 2 + 5.
  const double model = 72 * b * s * l * h * h * (1 + 7.0 / 12 * s / (6 * h) + v / (12 * h * l));
  EXPECT_NEAR(flops(spec::CheckpointMode::kNone) / model, 1, 1e-9);
  EXPECT_NEAR(flops(spec::CheckpointMode::kSelective) / model, 1, 1e-9);
  // Full recomputation is another forward, 24 b s l h^2 and attention's 2, less the MLP's second
  // product, 8, whose result no backward reads: 88 b s l h^2 where the paper has 96.
  const double again = (24 - 8) * b * s * l * h * h + 2 * b * s * s * h * l;
  EXPECT_NEAR(flops(spec::CheckpointMode::kFull) / (model + again), 1, 1e-9);
}

TEST(Formulas, RepeatedRoundsCountOnceEach) {
  CountedMemory memory{cache::Settings{}};
  const step::KernelRates rates{1e12, 1e12, 1e12, 0};
  step::CountingOps ops(memory, {.cuda = true, .threads = 2, .rates = rates}, 2);
  const auto a = step::CountedTensor::outside({8, 4}, step::Dtype::kBfloat16);
  const auto b = step::CountedTensor::outside({4, 2}, step::Dtype::kBfloat16);
  int rounds = 0;
  ops.repeat(5, [&](std::int64_t) {
    ops.repeat(7, [&](std::int64_t) {
      (void)ops.product(a, b);
      ++rounds;
    });
  });
  EXPECT_EQ(rounds, 4);
  EXPECT_DOUBLE_EQ(ops.work().flops, 35 * 2 * 8 * 4 * 2);
  // Memory bounds it: 32 + 8 + 16 elements of 2 bytes.
  EXPECT_DOUBLE_EQ(ops.work().bytes_moved, 35 * 2 * 56);
  EXPECT_DOUBLE_EQ(ops.work().seconds,
                   35 * step::product_seconds(rates, 1e12, 2 * 8 * 4 * 2, 2 * 56, 0));
}

// A place that three rounds keep is where each of four has been.
TEST(Formulas, RoundsThatLastAreAllRun) {
  CountedMemory memory{cache::Settings{}};
  for (const auto& [most, runs] : {std::pair{std::int64_t{2}, 4}, {std::int64_t{1}, 1}}) {
    step::CountingOps ops(memory, {.cuda = true, .threads = 2, .rates = {1e12, 1e12, 1e12, 0}},
                          most);
    const auto a = step::CountedTensor::outside({8, 4}, step::Dtype::kBfloat16);
    const auto b = step::CountedTensor::outside({4, 2}, step::Dtype::kBfloat16);
    int rounds = 0;
    const auto body = [&](std::int64_t) {
      (void)ops.product(a, b);
      ++rounds;
    };
    ops.repeat(14, body, /*lasting=*/3);
    EXPECT_EQ(rounds, runs);
    EXPECT_DOUBLE_EQ(ops.work().flops, 14 * 2 * 8 * 4 * 2);
    ops.repeat(2, body, /*lasting=*/3);
    EXPECT_EQ(rounds, runs + static_cast<int>(std::min(most, std::int64_t{2})));
  }
}

TEST(Formulas, KvCacheIsTwoLayersHeadsTokens) {
  JobModels models;
  models.actor = trained_actor(gpt2(24, 1024, 16));
  models.reward = trained_actor(gpt2(24, 1024, 16));
  models.reward->trained = false;
  spec::Job job;
  job.task = spec::Task::kGrpo;
  job.rollout.n = 4;
  job.data.train_batch_size = 16;
  job.data.max_prompt_length = 100;
  job.data.max_response_length = 156;
  Target target;
  target.cuda = true;
  for (const TagPlan& tag : build_tags(job, spec::describe(job), models, target)) {
    if (tag.id.kind != spec::TagKind::kKeyValues) continue;
    // 2 (keys, values) x 2 bytes x h x layers x (s + o) x b
    EXPECT_EQ(tag.bytes.count(), 2ULL * 2 * 1024 * 24 * 256 * 64);
    return;
  }
  FAIL() << "no KV cache";
}

// A pair of texts is two sequences.
TEST(Formulas, AMicroBatchOfPairsHasTwiceTheSequences) {
  const auto sequences = [](spec::Task task) {
    spec::Job job;
    job.task = task;
    job.data.use_dynamic_bsz = job.actor.use_dynamic_bsz = false;
    job.data.micro_batch_size_per_gpu = 3;
    job.actor.ppo_micro_batch_size_per_gpu = 5;
    job.critic.ppo_micro_batch_size_per_gpu = 7;
    std::vector<std::int64_t> found;
    const spec::Recipe recipe = spec::describe(job);
    for (const spec::Phase& phase : recipe.phases) {
      const spec::Batching batching = spec::batching_of(job, phase);
      if (phase.trains()) found.push_back(batching.rows * batching.sequences_of_row);
    }
    return found;
  };
  EXPECT_EQ(sequences(spec::Task::kSft), std::vector<std::int64_t>({3}));
  EXPECT_EQ(sequences(spec::Task::kReward), std::vector<std::int64_t>({6}));
  EXPECT_EQ(sequences(spec::Task::kDpo), std::vector<std::int64_t>({6}));
  EXPECT_EQ(sequences(spec::Task::kPpo), std::vector<std::int64_t>({7, 5}));
}

}  // namespace
}  // namespace neap::plan
