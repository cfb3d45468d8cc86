// Passes call Neap's kernels in place of libtorch's operations. They move fewer bytes and need less memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "step/counting/counting_ops.h"
#include "step/generation/sampling.h"
#include "step/model/block_parts.h"
#include "step/units/optimizer.h"

namespace neap::step {
namespace {

using T = CountedTensor;

class Requested final : public MemorySink {
 public:
  std::uint64_t allocate(std::int64_t size) override {
    bytes.push_back(size);
    return bytes.size();
  }
  void release(std::uint64_t) override {}
  std::vector<std::int64_t> bytes;
};

KernelProfile profile_of(bool own) {
  KernelProfile profile;
  profile.cuda = true;
  profile.own.on = own;
  profile.rates.bytes = 1;
  return profile;
}

// Work and requests of `work(ops)`.
template <class Body>
std::pair<double, std::vector<std::int64_t>> counted(bool own, const Body& work) {
  Requested memory;
  CountingOps ops(memory, profile_of(own), 1);
  work(ops);
  return {ops.work().bytes_moved, memory.bytes};
}

constexpr std::int64_t kElements = 1 << 20;

// The bytes that a step moves an element.
std::pair<double, std::vector<std::int64_t>> step_of(bool own, Dtype states,
                                                     const std::string& kind,
                                                     Dtype gradients = Dtype::kFloat32) {
  spec::OptimizerConfig config;
  config.kind = kind;
  config.state_dtype = states;
  config.gradient_dtype = gradients;
  const spec::OptimizerSpec optimizer = *spec::OptimizerSpec::of(config, Dtype::kBfloat16);
  spec::FlatUnit unit;
  unit.parameters.emplace_back().shape = {kElements};
  unit.elements = kElements;
  const TrainedUnit<T> trained = make_trained_unit<T>(
      optimizer, unit, 0, T::outside({kElements}, Dtype::kBfloat16),
      T::outside({kElements}, gradients),
      [](const spec::StateTensor& t) { return T::outside({t.elements}, t.dtype); });
  auto [bytes, requests] = counted(own, [&](CountingOps& ops) {
    step_unit(ops, trained, {.optimizer = optimizer, .config = config, .gradient_scale = 0.5});
  });
  return {bytes / kElements, requests};
}

TEST(OwnAdamW, IsOneKernelFromTheGradientToTheRoundedWeights) {
  const auto [bytes, requests] = step_of(true, Dtype::kFloat32, "adamw");
  EXPECT_EQ(bytes, 3 * 8 + 4 + 2);
  EXPECT_TRUE(requests.empty());
  EXPECT_EQ(step_of(true, Dtype::kFloat32, "adamw", Dtype::kBfloat16).first, 3 * 8 + 2 + 2);
  // Scale and copy read and write again.
  EXPECT_EQ(step_of(false, Dtype::kFloat32, "adamw").first, 8 + 3 * 8 + 4 + 4 + 2);
}

TEST(OwnAdamW, LeavesOtherStatesAndOptimizersToLibtorch) {
  EXPECT_EQ(step_of(true, Dtype::kBfloat16, "adamw"), step_of(false, Dtype::kBfloat16, "adamw"));
  EXPECT_EQ(step_of(true, Dtype::kFloat32, "sgd"), step_of(false, Dtype::kFloat32, "sgd"));
}

TEST(OwnRows, AreAddedToATableWithoutASort) {
  const auto added = [](bool own, Dtype table, std::int64_t columns) {
    return counted(own,
                   [&](CountingOps& ops) {
                     ops.add_to_rows_(T::outside({1000, columns}, table),
                                      T::outside({64}, Dtype::kInt64),
                                      T::outside({64, columns}, Dtype::kBfloat16));
                   })
        .second;
  };
  EXPECT_TRUE(added(true, Dtype::kFloat32, 64).empty());
  EXPECT_TRUE(added(true, Dtype::kBfloat16, 4096).empty());
  EXPECT_FALSE(added(false, Dtype::kFloat32, 64).empty());
  // A block's threads have too few columns.
  EXPECT_EQ(added(true, Dtype::kFloat32, 1), added(false, Dtype::kFloat32, 1));
}

TEST(OwnNorms, AddTheResidualStreamsGradient) {
  const auto backward = [](bool own, spec::NormKind kind, std::int64_t columns) {
    return counted(own, [&](CountingOps& ops) {
      spec::Architecture a;
      a.norm = kind;
      const auto rows = [&] { return T::outside({1000, columns}, Dtype::kBfloat16); };
      Norm<T> p;
      p.weight = T::outside({columns}, Dtype::kBfloat16);
      p.d_weight = T::outside({columns}, Dtype::kFloat32);
      const T column = T::outside({1000, 1}, Dtype::kFloat32);
      (void)norm_backward(ops, a, p, rows(), {column, column}, rows(),
                          static_cast<GradientQueue<T>*>(nullptr), rows());
    });
  };
  const auto [bytes, requests] = backward(true, spec::NormKind::kRms, 512);
  constexpr std::int64_t kColumns = 512;
  EXPECT_EQ(requests,
            (std::vector<std::int64_t>{1000 * kColumns * 2, norm_blocks(1000) * kColumns * 4}));
  EXPECT_EQ(norm_blocks(1000), 250);
  EXPECT_EQ(norm_blocks(1 << 20), 256);
  EXPECT_LT(bytes, 0.6 * backward(false, spec::NormKind::kRms, 512).first);
  EXPECT_EQ(backward(true, spec::NormKind::kLayerNorm, 512),
            backward(false, spec::NormKind::kLayerNorm, 512));
  EXPECT_EQ(backward(true, spec::NormKind::kRms, 96), backward(false, spec::NormKind::kRms, 96));
  EXPECT_LT(backward(true, spec::NormKind::kRms, 128).first,
            0.6 * backward(false, spec::NormKind::kRms, 128).first);
}

// Requests of what decoding makes of queries, keys and values.
TEST(OwnHeads, WithNormsAreOneProduct) {
  const auto projected = [](bool across, spec::NormKind kind, std::int64_t rank) {
    return counted(true,
                   [&](CountingOps& ops) {
                     spec::Architecture a;
                     a.hidden_size = 512;
                     a.num_attention_heads = 8;
                     a.num_key_value_heads = 2;
                     a.head_dim = 64;
                     a.query_key_norm = true;
                     a.norm_across_heads = across;
                     a.norm = kind;
                     Block<T> w;
                     const auto matrix = [&](std::int64_t out) {
                       Linear<T> p;
                       p.weight = T::outside({out, 512}, Dtype::kBfloat16);
                       if (rank > 0) {
                         p.lora_a = T::outside({rank, 512}, Dtype::kBfloat16);
                         p.lora_b = T::outside({out, rank}, Dtype::kBfloat16);
                       }
                       return p;
                     };
                     w.query = matrix(512);
                     w.key = w.value = matrix(128);
                     const T h = T::outside({8, 512}, Dtype::kBfloat16);
                     EXPECT_EQ(joins_heads(ops, a, w, h),
                               rank % 8 == 0 && !across && kind != spec::NormKind::kLayerNorm);
                     if (joins_heads(ops, a, w, h)) (void)project_joined_heads(ops, a, w, h);
                   })
        .second;
  };
  EXPECT_EQ(projected(false, spec::NormKind::kRms, 0),
            (std::vector<std::int64_t>{std::int64_t{8} * 768 * 2}));
  EXPECT_EQ(projected(false, spec::NormKind::kRmsOffset, 0).size(), 1);
  EXPECT_TRUE(projected(true, spec::NormKind::kRms, 0).empty());
  EXPECT_TRUE(projected(false, spec::NormKind::kLayerNorm, 0).empty());
  EXPECT_TRUE(projected(false, spec::NormKind::kRms, 4).empty());
  // With the products of the adapters' first matrices.
  EXPECT_EQ(projected(false, spec::NormKind::kRms, 16),
            (std::vector<std::int64_t>{std::int64_t{8} * (768 + 3 * 16) * 2}));
}

// The kernel for so many rows and a matrix of Qwen2.5, OPT or Llama.
TEST(OwnProducts, AreChosenByRowsAndSize) {
  const auto chosen = [](bool warp_groups, std::int64_t rows, std::int64_t in, std::int64_t out,
                         Dtype dtype = Dtype::kBfloat16) {
    return OwnKernels{true, warp_groups}.row_product(dtype, rows, in, out);
  };
  for (const std::int64_t rows : {1, 4, 8})
    EXPECT_EQ(chosen(true, rows, 896, 896), RowProduct::kFewRows);
  for (const std::int64_t rows : {9, 17, 64})
    EXPECT_EQ(chosen(true, rows, 896, 896), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 65, 896, 896), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 4, 4096, 28672), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 5, 4096, 28672), RowProduct::kSomeRows) << "wide";
  EXPECT_EQ(chosen(true, 64, 4096, 28672), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 8, 896, 9728), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 8, 4864, 896), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 8, 1536, 2048), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 8, 2048, 8192), RowProduct::kFewRows) << "whole rounds of its loads";
  EXPECT_EQ(chosen(true, 8, 8192, 2048 + 32), RowProduct::kFewRows) << "with an adapter's rows";
  EXPECT_EQ(chosen(true, 8, 4096, 1024 + 16), RowProduct::kFewRows) << "with an adapter's rows";
  EXPECT_EQ(chosen(true, 1, 2560, 4096), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 4, 1536, 17920), RowProduct::kFewRows) << "whole rounds";
  EXPECT_EQ(chosen(true, 8, 8960, 1536), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 8, 8960, 1536 + 32), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 4, 3584, 3584), RowProduct::kFewRows);
  EXPECT_EQ(chosen(true, 8, 4096, 4096), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 5, 14336, 4096), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 48, 2048, 6144), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 49, 2048, 6144), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 64, 2048, 8192), RowProduct::kSomeRows) << "wide";
  EXPECT_EQ(chosen(true, 64, 8960, 1536), RowProduct::kSomeRows) << "deep";
  // Heads.
  EXPECT_EQ(chosen(true, 1, 896, 151936), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 16, 2048, 50272), RowProduct::kSomeRows);
  EXPECT_EQ(chosen(true, 17, 2048, 50272), RowProduct::kLibrary);
  // Without products of warp groups, as on other GPUs than Hopper.
  EXPECT_EQ(chosen(false, 8, 4096, 28672), RowProduct::kFewRows);
  EXPECT_EQ(chosen(false, 9, 896, 896), RowProduct::kLibrary);
  EXPECT_EQ(chosen(false, 1, 896, 151936), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 8, 900, 896), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 8, 896, 900), RowProduct::kLibrary);
  EXPECT_EQ(chosen(true, 8, 896, 896, Dtype::kFloat32), RowProduct::kLibrary);
  EXPECT_EQ(OwnKernels{}.row_product(Dtype::kBfloat16, 8, 896, 896), RowProduct::kLibrary);
}

TEST(OwnProducts, NormalizeFewRowsThatABlockKeeps) {
  const auto normalizes = [](bool warp_groups, std::int64_t rows, std::int64_t in,
                             std::int64_t out) {
    return OwnKernels{true, warp_groups}.normalizes(Dtype::kBfloat16, rows, in, out);
  };
  EXPECT_TRUE(normalizes(true, 8, 896, 1152));
  EXPECT_TRUE(normalizes(true, 1, 1536, 17920));
  EXPECT_TRUE(normalizes(true, 8, 2048, 8192));
  EXPECT_FALSE(normalizes(true, 9, 896, 1152));
  EXPECT_FALSE(normalizes(true, 8, 4864, 896)) << "more columns";
  EXPECT_FALSE(normalizes(true, 8, 1600, 1600)) << "its layer's larger matrices have other kernels";
  EXPECT_FALSE(normalizes(true, 4, 4096, 6144));
  EXPECT_FALSE(normalizes(true, 8, 896, 151936)) << "a head";
  EXPECT_FALSE(normalizes(false, 8, 896, 1152));
}

TEST(OwnAttention, ReadsSharedKeysOnceWhereRowsFillTheCard) {
  EXPECT_EQ(attend_heads(8, 14, 2), 1);
  EXPECT_EQ(attend_heads(63, 14, 2), 1);
  EXPECT_EQ(attend_heads(64, 14, 2), 4) << "and three";
  EXPECT_EQ(attend_heads(64, 12, 2), 3);
  EXPECT_EQ(attend_heads(32, 32, 8), 4);
  EXPECT_EQ(attend_heads(256, 16, 8), 2);
  EXPECT_EQ(attend_heads(256, 32, 32), 1);
  // FlashAttention's where many keys are read several times.
  const auto own = [](std::int64_t rows, std::int64_t heads, std::int64_t key_heads,
                      std::int64_t width, std::int64_t limit) {
    return decodes_by_own({true, true}, {}, true, Dtype::kBfloat16,
                          {rows, heads, key_heads, width, limit});
  };
  EXPECT_TRUE(own(64, 14, 2, 64, 512));
  EXPECT_FALSE(own(64, 14, 2, 64, 1024));
  EXPECT_TRUE(own(64, 32, 8, 128, 4096)) << "read once";
  EXPECT_FALSE(own(16, 32, 8, 128, 4096));
  EXPECT_TRUE(own(16, 32, 32, 128, 4096)) << "not shared";
}

TEST(OwnProducts, DivideColumnsWhereTilesAreFewerThanTheCardTakes) {
  const auto grid = [](std::int64_t in, std::int64_t out, std::int64_t multiprocessors = 132) {
    return OwnKernels{true, true, multiprocessors}.rows_grid(in, out);
  };
  EXPECT_EQ(grid(896, 896), (RowsGrid{4, 2}));  // a block has 200 columns or more
  EXPECT_EQ(grid(4864, 896), (RowsGrid{8, 2}));
  EXPECT_EQ(grid(8192, 2048), (RowsGrid{8, 3}));  // and if it has many, more share a multiprocessor
  EXPECT_EQ(grid(2048, 2048), (RowsGrid{4, 2}));
  EXPECT_EQ(grid(896, 9728), (RowsGrid{1, 2}));
  EXPECT_EQ(grid(1536, 17920), (RowsGrid{1, 3}));
  EXPECT_EQ(grid(4096, 28672), (RowsGrid{1, 2}));  // two rounds
  EXPECT_EQ(grid(896, 151936), (RowsGrid{1, 3}));
  EXPECT_EQ(grid(8, 8), (RowsGrid{1, 2}));
  // A slice of the GPU.
  EXPECT_EQ(grid(4864, 896, 16), (RowsGrid{2, 2}));
  EXPECT_EQ(grid(8192, 64, 7), (RowsGrid{4, 2}));
  EXPECT_EQ(grid(8192, 64, 1), (RowsGrid{1, 2}));
}

class OwnDraws : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 64, kVocabulary = 151936, kParts = 19;
  static SamplingOptions options(double top_p) {
    SamplingOptions out;
    out.top_p = top_p;
    out.log_probs = true;
    return out;
  }
  static std::pair<double, std::vector<std::int64_t>> sampled(bool own, Dtype dtype,
                                                              const SamplingOptions& options) {
    return counted(own, [&](CountingOps& ops) {
      Weights<T> w;
      w.architecture.vocab_size = kVocabulary;
      w.architecture.final_norm = false;
      w.lm_head.weight = T::outside({kVocabulary, 64}, dtype);
      Draw<T> draw;
      draw.uniforms = T::outside({kRows}, Dtype::kFloat32);
      draw.seen = T::outside({kRows, 100}, Dtype::kInt64);
      draw.amounts = T::outside({kRows, 100}, Dtype::kFloat32);
      (void)next_tokens(ops, w, T::outside({kRows, 64}, dtype), options, draw);
    });
  }
};

TEST_F(OwnDraws, ReadTheLogitsThatTheProductWrote) {
  constexpr std::int64_t kLogits = kRows * kVocabulary * 2;
  const auto [bytes, requests] = sampled(true, Dtype::kBfloat16, options(1));
  EXPECT_EQ(requests,
            (std::vector<std::int64_t>{kLogits, kRows * 8, kRows * 4, kRows * kParts * 2 * 8}));
  EXPECT_LT(bytes, 0.15 * sampled(false, Dtype::kBfloat16, options(1)).first);
  // And the counts of a window of 1024 values in each part.
  const auto [ordered_bytes, ordered] = sampled(true, Dtype::kBfloat16, options(0.95));
  EXPECT_EQ(ordered, (std::vector<std::int64_t>{kLogits, kRows * 8, kRows * 4,
                                                kRows * kParts * (2 * 8 + 1024 * 2)}));
  EXPECT_LT(ordered_bytes, 0.15 * sampled(false, Dtype::kBfloat16, options(0.95)).first);
}

TEST_F(OwnDraws, LeavePenaltiesAndTheOrderOfFloat32ToLibtorch) {
  SamplingOptions penalties = options(1);
  penalties.presence_penalty = 1;
  EXPECT_EQ(sampled(true, Dtype::kBfloat16, penalties),
            sampled(false, Dtype::kBfloat16, penalties));
  EXPECT_EQ(sampled(true, Dtype::kFloat32, options(0.95)),
            sampled(false, Dtype::kFloat32, options(0.95)));
  EXPECT_NE(sampled(true, Dtype::kFloat32, options(1)),
            sampled(false, Dtype::kFloat32, options(1)));
  SamplingOptions every = options(1);
  every.top_k = kVocabulary;
  EXPECT_NE(sampled(true, Dtype::kFloat32, every), sampled(false, Dtype::kFloat32, every));
}

}  // namespace
}  // namespace neap::step
