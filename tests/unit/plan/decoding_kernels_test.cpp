// How many kernels a layer of a decoding step has.
#include <gtest/gtest.h>

#include "plan/counting/counted_model.h"
#include "step/model/transformer.h"

namespace neap::plan {
namespace {

using step::CountedTensor;
using step::Dtype;

double kernels(const spec::Architecture& shape, const spec::LoraShape& lora, bool own,
               std::int64_t rows, bool warp_groups) {
  ModelRole role;
  role.shape = shape;
  role.lora = lora;
  step::ScratchSink sink;
  step::KernelProfile profile;
  profile.cuda = profile.graphs = true;
  profile.own = {own, warp_groups};
  step::CountingOps ops(sink, profile, 1 << 20);
  const step::Weights<CountedTensor> weights = counted_weights(role, Dtype::kBfloat16);
  const auto cache = counted_cache(role, Dtype::kBfloat16, rows, 512);
  const auto rotations = step::make_rotations(ops, shape, 512);
  const CountedTensor longs = CountedTensor::outside({rows}, Dtype::kInt64);
  ops.graphed({rows, 512},
              [&] { (void)step::decode(ops, weights, rotations, longs, longs, cache, 512); });
  return ops.graphs_made().kernels();
}
// An attention counts as one.
double of_a_layer(spec::Architecture shape, bool own = true, const spec::LoraShape& lora = {},
                  std::int64_t rows = 64, bool warp_groups = false) {
  shape.num_hidden_layers = 1;
  const double one = kernels(shape, lora, own, rows, warp_groups);
  shape.num_hidden_layers = 2;
  return kernels(shape, lora, own, rows, warp_groups) - one;
}

spec::Architecture llama() {
  spec::Architecture a;
  a.model_type = "llama";
  a.vocab_size = 1024;
  a.hidden_size = a.embedding_dim = 512;
  a.intermediate_size = 1024;
  a.num_attention_heads = 8;
  a.num_key_value_heads = 2;
  a.head_dim = a.rotary.dimensions = 64;
  a.max_position_embeddings = 512;
  return a;
}
spec::Architecture opt() {
  spec::Architecture a = llama();
  a.model_type = "opt";
  a.num_key_value_heads = 8;
  a.rotary.dimensions = 0;
  a.learned_positions = true;
  a.norm = spec::NormKind::kLayerNorm;
  a.gated = false;
  a.activation = spec::Activation::kRelu;
  a.attention_bias = a.attention_output_bias = a.mlp_bias = true;
  return a;
}

TEST(DecodingKernels, OfALayerAreFew) {
  // Two norms; heads, attention's output, gate with up, and down; append, attention, the product of gate and up.
  EXPECT_EQ(of_a_layer(llama()), 9);
  spec::Architecture biased = llama();
  biased.attention_bias = true;
  EXPECT_EQ(of_a_layer(biased), 10) << "queries have their own product";
  EXPECT_EQ(of_a_layer(opt()), 8) << "heads that share no keys attend with the append";
}

TEST(DecodingKernels, OfFewRowsAreFewer) {
  // The append attends, in two kernels here; gate, up and their product are one.
  spec::Architecture biased = llama();
  biased.attention_bias = true;
  for (const spec::Architecture& shape : {llama(), biased, opt()}) {
    EXPECT_EQ(of_a_layer(shape, true, {}, 8), 8) << shape.model_type;
    EXPECT_EQ(of_a_layer(shape, true, {}, 8, true), 6) << "the products compute the norms";
  }
  EXPECT_EQ(of_a_layer(llama(), true, {}, 9), 9) << "products of libtorch";
  for (const spec::Architecture& shape : {llama(), biased})
    EXPECT_EQ(of_a_layer(shape, true, {}, 64, true), 8) << "products of warp groups";
  EXPECT_EQ(of_a_layer(opt(), true, {}, 64, true), 7) << "which attends with the append";
  EXPECT_EQ(of_a_layer(llama(), true, {}, 65, true), 9);
}

TEST(DecodingKernels, OfLibtorchAndOfWhatCannotBeJoinedAreMore) {
  // Eight for rotations, two for writes, sums, and a product for each matrix.
  EXPECT_EQ(of_a_layer(llama(), false), 24);
  spec::Architecture normed = llama();
  normed.query_key_norm = true;
  EXPECT_EQ(of_a_layer(normed), 9) << "the append computes the norms";
  normed.norm_across_heads = true;
  EXPECT_EQ(of_a_layer(normed), 9 + 2 + 2) << "two norms, and products of their own";
  // Adapters of query and value: two products each, and no joined ones.
  EXPECT_EQ(of_a_layer(llama(), true, {8, {"q_proj", "v_proj"}}), 9 + 2 + 4);
  spec::Architecture parallel = llama();
  parallel.parallel_residual = true;
  EXPECT_EQ(of_a_layer(parallel), 9 + 2) << "the stream is read again";
}

}  // namespace
}  // namespace neap::plan
