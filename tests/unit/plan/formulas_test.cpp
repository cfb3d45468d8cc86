// The planner against published arithmetic: ZeRO's model states, Korthikanti et al.'s activations,
// the usual KV cache formula.
#include <gtest/gtest.h>

#include "plan/counted_memory.h"
#include "plan/phase_passes.h"
#include "plan/tags.h"
#include "plan/transients.h"

namespace neap::plan {
namespace {

// 16 bytes a parameter: 2 of weights, 2 of gradients, K = 12 of Adam; stage s divides the last s
// of (weights, gradients, optimizer) over n devices.
double zero_gigabytes(double parameters, int stage, double n) {
  const double weights = 2 * parameters / (stage >= 3 ? n : 1);
  const double gradients = 2 * parameters / (stage >= 2 ? n : 1);
  const double optimizer = 12 * parameters / (stage >= 1 ? n : 1);
  return (weights + gradients + optimizer) / 1e9;
}

ModelRole gpt2_role(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelRole role;
  role.name = "actor";
  spec::Architecture& shape = role.shape;
  shape.model_type = "gpt2";
  shape.vocab_size = 50257;
  shape.hidden_size = shape.embedding_dim = hidden;
  shape.intermediate_size = 4 * hidden;
  shape.num_hidden_layers = layers;
  shape.num_attention_heads = shape.num_key_value_heads = heads;
  shape.head_dim = hidden / heads;
  shape.max_position_embeddings = 2048;
  shape.learned_positions = true;
  shape.norm = spec::NormKind::kLayerNorm;
  shape.qkv = spec::QkvLayout::kThirds;
  shape.input_major = true;
  shape.gated = false;
  shape.activation = spec::Activation::kGeluTanh;
  shape.tie_word_embeddings = true;
  shape.attention_bias = shape.attention_output_bias = shape.mlp_bias = true;
  role.trained = true;
  return role;
}

// What a training forward over b sequences of s tokens leaves, in bfloat16 on a GPU.
std::uint64_t kept_bytes(const ModelRole& role, std::int64_t b, std::int64_t s) {
  CountedMemory memory{cache::Settings{}};
  step::CountingOps ops(memory, {true, 2}, 2);
  const auto w = counted_weights(role, step::Dtype::kBfloat16);
  const auto tokens = step::CountedTensor::outside({b * s}, step::Dtype::kInt64);
  const auto tape = step::forward_train(ops, w, tokens, s, role.checkpointing);
  return memory.allocated().count();
}

TEST(Formulas, ZerosExampleOfSevenAndAHalfBillion) {
  EXPECT_NEAR(zero_gigabytes(7.5e9, 0, 64), 120, 0.05);
  EXPECT_NEAR(zero_gigabytes(7.5e9, 1, 64), 31.4, 0.05);
  EXPECT_NEAR(zero_gigabytes(7.5e9, 2, 64), 16.6, 0.05);
  EXPECT_NEAR(zero_gigabytes(7.5e9, 3, 64), 1.9, 0.05);
}

TEST(Formulas, TagsAreZerosTermsWithWiderGradients) {
  JobModels models;
  models.actor = gpt2_role(36, 4096, 32);  // 7.46 billion
  spec::Job job;
  job.task = spec::Task::kSft;
  Target target;
  target.cuda = true;
  const auto tags = build_tags(job, spec::describe(job), models, target);
  ASSERT_EQ(tags.size(), 3U);
  double parameters = 0;
  for (const spec::FlatUnit& unit :
       spec::flat_layout(models.actor->shape, spec::Head::kLanguageModel))
    for (const spec::Parameter& p : unit.parameters)
      parameters += static_cast<double>(p.elements());
  EXPECT_NEAR(parameters, 7.46e9, 0.02e9);
  const auto per_parameter = [&](std::size_t t) {
    return static_cast<double>(tags[t].bytes.count()) / parameters;
  };
  EXPECT_NEAR(per_parameter(0), 2, 0.02);   // weights
  EXPECT_NEAR(per_parameter(1), 4, 0.04);   // gradients add up in float32
  EXPECT_NEAR(per_parameter(2), 12, 0.12);  // ZeRO's K
  // Megatron-LM's 18 bytes a parameter, and ZeRO's 16 without the wider gradients.
  EXPECT_NEAR(per_parameter(0) + per_parameter(1) + per_parameter(2), 18, 0.18);
  const double with_half_gradients =
      (per_parameter(0) + per_parameter(1) / 2 + per_parameter(2)) * 7.5e9 / 1e9;
  EXPECT_NEAR(with_half_gradients, zero_gigabytes(7.5e9, 0, 64), 1.2);
}

// Bytes that one more block keeps of b sequences of s tokens, in units of s b h.
double kept_a_block(spec::CheckpointMode mode, std::int64_t b, std::int64_t s, std::int64_t h,
                    std::int64_t heads) {
  const auto allocated = [&](std::int64_t layers) {
    ModelRole role = gpt2_role(layers, h, heads);
    role.checkpointing = spec::checkpointing(mode, role.shape);
    return static_cast<double>(kept_bytes(role, b, s));
  };
  return (allocated(9) - allocated(8)) / static_cast<double>(s * b * h);
}

TEST(Formulas, BlocksKeepKorthikantisBytesLessDropout) {
  const std::int64_t s = 256, b = 4, h = 1024, heads = 16;
  // Beside the formulas: a float32 a head and row of attention, and its kernel's seed and offset in
  // blocks of 512 bytes; two float32 a row of a norm whose output is kept.
  const double attention = 4.0 * static_cast<double>(heads) / static_cast<double>(h) +
                           2 * 512 / static_cast<double>(s * b * h);
  const double norms = 2 * 2 * 4.0 / static_cast<double>(h);
  // 34 sbh with attention's scores computed again inside its kernel, less 2 dropout masks of a byte.
  EXPECT_NEAR(kept_a_block(spec::CheckpointMode::kNone, b, s, h, heads), 34 - 2 + attention + norms,
              1e-9);
  // Less two outputs of norms, 2 sbh each, and GELU's output, 8 sbh.
  EXPECT_NEAR(kept_a_block(spec::CheckpointMode::kSelective, b, s, h, heads),
              34 - 2 - 2 * 2 - 8 + attention, 1e-9);
  EXPECT_NEAR(kept_a_block(spec::CheckpointMode::kFull, b, s, h, heads), 2, 1e-9);
}

// FLOPs of a training step of a GPT-2 with cross entropy over all tokens.
double counted_flops(const ModelRole& role, std::int64_t b, std::int64_t s) {
  CountedMemory memory{cache::Settings{}};
  step::CountingOps ops(memory, {true, 2}, 2);
  const auto w = counted_weights(role, step::Dtype::kBfloat16);
  const auto tokens = step::CountedTensor::outside({b * s}, step::Dtype::kInt64);
  const auto weights = step::CountedTensor::outside({b * s}, step::Dtype::kFloat32);
  auto tape = step::forward_train(ops, w, tokens, s, role.checkpointing);
  auto loss = step::cross_entropy(ops, w, tape.hidden, {}, tokens, weights, {});
  step::backward(ops, w, std::move(tape), std::move(loss.d_hidden));
  return ops.work().flops;
}

TEST(Formulas, TrainingTakesKorthikantisFlops) {
  const std::int64_t batch = 4, length = 256, width = 1024, layers = 6;
  ModelRole role = gpt2_role(layers, width, 16);
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
  step::CountingOps ops(memory, {.cuda = true, .threads = 2, .rates = {1e12, 1e12, 1e12, 0}}, 2);
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
  EXPECT_DOUBLE_EQ(ops.work().seconds, 35 * 2 * 8 * 4 * 2 / 1e12);
}

TEST(Formulas, KvCacheIsTwoLayersHeadsTokens) {
  JobModels models;
  models.actor = gpt2_role(24, 1024, 16);
  models.reward = gpt2_role(24, 1024, 16);
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
    if (tag.tag != "rollout.kv") continue;
    // 2 (keys, values) x 2 bytes x h x layers x (s + o) x b
    EXPECT_EQ(tag.bytes.count(), 2ULL * 2 * 1024 * 24 * 256 * 64);
    return;
  }
  FAIL() << "no KV cache";
}

}  // namespace
}  // namespace neap::plan
