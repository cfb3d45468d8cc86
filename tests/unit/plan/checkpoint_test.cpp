// Ladders of retentions.
#include <gtest/gtest.h>

#include "plan/counting/counted_memory.h"
#include "plan/counting/counted_model.h"
#include "plan/rates/device_rates.h"
#include "plan/search/checkpoint_ladder.h"
#include "step/model/transformer.h"

namespace neap::plan {
namespace {

using spec::SavedTensor;

// The shape of Qwen2.5-1.5B with fewer blocks.
ModelRole qwen_role() {
  ModelRole role;
  role.trained = true;
  spec::Architecture& a = role.shape;
  a.vocab_size = 1000;
  a.hidden_size = a.embedding_dim = 1536;
  a.intermediate_size = 8960;
  a.num_hidden_layers = 6;
  a.num_attention_heads = 12;
  a.num_key_value_heads = 2;
  a.head_dim = 128;
  a.max_position_embeddings = 4096;
  a.rotary.dimensions = 128;
  a.attention_bias = true;
  return role;
}
constexpr std::int64_t kSequences = 8, kLength = 2048;

step::KernelProfile profile() {
  step::KernelProfile out;
  out.cuda = true;
  out.threads = 2;
  out.rates = default_rates(true, 2);
  return out;
}
CheckpointLadder ladder_of(const ModelRole& role) {
  return {role, spec::Dtype::kBfloat16, profile(), {kSequences, kLength}};
}

struct Pass {
  std::uint64_t kept = 0;
  double seconds = 0;
};
Pass train(const ModelRole& role, const spec::Checkpointing& checkpointing) {
  CountedMemory memory{cache::Settings{}};
  step::CountingOps ops(memory, profile(), 2);
  const auto w = counted_weights(role, spec::Dtype::kBfloat16);
  const std::int64_t n = kSequences * kLength;
  const auto tokens = step::CountedTensor::outside({n}, spec::Dtype::kInt64);
  auto tape = step::forward_train(ops, w, step::of_one_length(tokens, kLength), checkpointing);
  Pass pass;
  pass.kept = memory.allocated().count();
  step::backward(ops, w, std::move(tape), ops.empty({n, 1536}, spec::Dtype::kBfloat16));
  pass.seconds = ops.work().seconds;
  return pass;
}

TEST(CheckpointLadder, EveryRungTakesLessMemoryAndMoreTime) {
  const ModelRole role = qwen_role();
  const CheckpointLadder ladder = ladder_of(role);
  EXPECT_EQ(ladder.at(0), spec::checkpointing(spec::CheckpointMode::kNone, role.shape));
  EXPECT_EQ(ladder.at(ladder.last()), spec::checkpointing(spec::CheckpointMode::kFull, role.shape));
  EXPECT_GE(ladder.last(), 8 * ladder.step());
  Pass before = train(role, ladder.at(0));
  double least = 0;  // seconds for each byte
  for (std::size_t rung = ladder.step(); rung <= ladder.last(); rung += ladder.step()) {
    const Pass half = train(role, ladder.at(rung - ladder.step() / 2));
    const Pass here = train(role, ladder.at(rung));
    EXPECT_LT(half.kept, before.kept) << rung;
    EXPECT_LT(here.kept, half.kept) << rung;
    EXPECT_GE(half.seconds, before.seconds) << rung;
    EXPECT_GE(here.seconds, half.seconds) << rung;
    const double price =
        (here.seconds - before.seconds) / static_cast<double>(before.kept - here.kept);
    EXPECT_GE(price, least * (1 - 1e-6)) << rung;
    least = price;
    before = here;
  }
}

TEST(CheckpointLadder, CheapTensorsGoFirst) {
  const CheckpointLadder ladder = ladder_of(qwen_role());
  const auto recomputes = [&](std::size_t item, SavedTensor t) {
    return !ladder.at(item * ladder.step()).blocks[0].keeps(t);
  };
  // Four tensors that need no product of matrices, then those that do, then attention's output and what is rotated.
  for (const SavedTensor t : {SavedTensor::kAttentionInput, SavedTensor::kMlpInput,
                              SavedTensor::kActivated, SavedTensor::kProduct})
    EXPECT_TRUE(recomputes(4, t)) << to_string(t);
  EXPECT_FALSE(recomputes(4, SavedTensor::kGate));
  EXPECT_FALSE(recomputes(ladder.last() / ladder.step() - 2, SavedTensor::kAttentionOut));
  EXPECT_FALSE(recomputes(ladder.last() / ladder.step() - 1, SavedTensor::kQueryKey));
}

TEST(CheckpointLadder, TensorsOfOneProductGoTogether) {
  ModelRole role = qwen_role();
  role.shape.num_key_value_heads = 12;
  role.shape.qkv = spec::QkvLayout::kInTurn;
  role.shape.rotary.dimensions = 0;
  role.shape.learned_positions = true;
  const CheckpointLadder ladder = ladder_of(role);
  for (std::size_t rung = 0; rung <= ladder.last(); rung += ladder.step()) {
    const spec::BlockRetention block = ladder.at(rung).blocks[0];
    EXPECT_EQ(block.keeps(SavedTensor::kProjections), block.keeps(SavedTensor::kQueryKey)) << rung;
  }
}

}  // namespace
}  // namespace neap::plan
