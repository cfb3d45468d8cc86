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
  const auto tape = step::forward_train(ops, w, tokens, s,
                                        role.checkpointing ? step::Keep::kInput : step::Keep::kAll);
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
  job.task = "sft";
  Target target;
  target.cuda = true;
  const auto tags = build_tags(job, *spec::describe(job), models, target);
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

TEST(Formulas, BlocksKeepKorthikantisBytesLessDropoutAndGelu) {
  // 34 sbh a layer with attention's scores recomputed; without its 2 dropout masks of a byte and
  // without the 8 sbh of GELU's output, 24 sbh is left. Beside it: two float32 a norm and row, one
  // a head and row.
  const std::int64_t s = 256, b = 4, h = 1024, a = 16;
  const auto allocated = [&](std::int64_t layers) {
    const ModelRole role = gpt2_role(layers, h, a);
    return static_cast<double>(kept_bytes(role, b, s));
  };
  const double a_block = allocated(9) - allocated(8);
  const double rows = static_cast<double>(s * b);
  const double statistics = rows * (2 * 2 * 4 + static_cast<double>(a) * 4);
  EXPECT_NEAR(a_block, 24 * rows * static_cast<double>(h) + statistics, 0.005 * a_block);
  EXPECT_NEAR(34 - 2 - 8, 24, 0);
}

TEST(Formulas, RecomputationKeepsABlocksInput) {
  const std::int64_t s = 256, b = 4, h = 1024;
  const auto allocated = [&](std::int64_t layers) {
    ModelRole role = gpt2_role(layers, h, 16);
    role.checkpointing = true;
    return kept_bytes(role, b, s);
  };
  // 2 sbh, as the activation checkpointing papers have it.
  EXPECT_EQ(allocated(9) - allocated(8), static_cast<std::uint64_t>(2 * s * b * h));
}

TEST(Formulas, KvCacheIsTwoLayersHeadsTokens) {
  JobModels models;
  models.actor = gpt2_role(24, 1024, 16);
  models.reward = gpt2_role(24, 1024, 16);
  models.reward->trained = false;
  spec::Job job;
  job.task = "grpo";
  job.rollout.n = 4;
  job.data.train_batch_size = 16;
  job.data.max_prompt_length = 100;
  job.data.max_response_length = 156;
  Target target;
  target.cuda = true;
  for (const TagPlan& tag : build_tags(job, *spec::describe(job), models, target)) {
    if (tag.tag != "rollout.kv") continue;
    // 2 (keys, values) x 2 bytes x h x layers x (s + o) x b
    EXPECT_EQ(tag.bytes.count(), 2ULL * 2 * 1024 * 24 * 256 * 64);
    return;
  }
  FAIL() << "no KV cache";
}

}  // namespace
}  // namespace neap::plan
