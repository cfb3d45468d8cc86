// Scratch of CUDA kernels against what libtorch's allocator gave out on an H200 (132 multiprocessors).
#include "step/counting/cuda_scratch.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace neap::step {
namespace {

constexpr double kMib = 1 << 20;

struct Measured {
  AttentionSizes sizes;
  // MiB while six sets of gradients were held, by tests/gpu/attention_kernels.py.
  double flash, flash_deterministic, cudnn;
};

TEST(CudaScratch, AttentionBackwardIsWhatWasMeasured) {
  for (const Measured& m : {Measured{{8, 1024, 12, 2, 128}, 288.4, 336.4, 288.4},
                            Measured{{4, 2048, 28, 4, 128}, 656.9, 768.9, 656.9},
                            Measured{{8, 1024, 32, 32, 64}, 641.0, 641.0, 641.0},
                            Measured{{16, 64, 4, 2, 32}, 4.5, 6.5, 4.0}}) {
    const AttentionSizes& s = m.sizes;
    SCOPED_TRACE(s.length);
    const double gradients =
        static_cast<double>(12L * s.sequences * s.length * s.width * (s.heads + 2 * s.key_heads)) /
        kMib;
    for (const bool deterministic : {false, true}) {
      const FlashScratch f = flash_backward_scratch(s, deterministic, {});
      EXPECT_NEAR(
          gradients +
              static_cast<double>(4 * f.row_sums + 4 * f.accumulator + 4L * f.key_heads) / kMib,
          deterministic ? m.flash_deterministic : m.flash, 0.06);
    }
    EXPECT_NEAR(
        gradients + static_cast<double>(cudnn_backward_workspace(s, Dtype::kBfloat16)) / kMib,
        m.cudnn, 0.06);
  }
}

// As the allocator gave them out, in bytes (tests/gpu/model).
TEST(CudaScratch, WorkspacesAreThoseOfTheAllocatorsTrace) {
  EXPECT_EQ(cudnn_backward_workspace({2, 5, 4, 4, 16}, Dtype::kBfloat16), 2976);
  EXPECT_EQ(cudnn_backward_workspace({2, 5, 4, 2, 16}, Dtype::kBfloat16), 5536);
  EXPECT_EQ(cudnn_backward_workspace({2, 200, 4, 2, 16}, Dtype::kBfloat16), 211456);
  EXPECT_EQ(cudnn_backward_workspace({3, 21, 1, 1, 16}, Dtype::kBfloat16), 4540);
  EXPECT_EQ(cudnn_backward_workspace({1, 330, 3, 1, 16}, Dtype::kBfloat16), 131064);
  EXPECT_EQ(efficient_backward_workspace({2, 5, 4, 4, 16}), 131200);
  EXPECT_EQ(efficient_backward_workspace({2, 200, 4, 4, 16}), 524800);
  EXPECT_EQ(efficient_backward_workspace({2, 800, 4, 4, 16}), 1705600);
}

TEST(CudaScratch, FlashSplitsKeysWhereBlocksAreFew) {
  const FlashSplits four = flash_forward_splits({2, 200, 4, 4, 192}, {});
  EXPECT_EQ(4 * four.log_sums, 25600);
  EXPECT_EQ(4 * four.outputs, 4915200);
  const FlashSplits five = flash_forward_splits({2, 800, 4, 2, 192}, {});
  EXPECT_EQ(4 * five.log_sums, 128000);
  EXPECT_EQ(4 * five.outputs, 24576000);
  EXPECT_EQ(flash_forward_splits({8, 1024, 12, 2, 128}, {}).outputs, 0);
  EXPECT_EQ(flash_forward_splits({2, 64, 4, 4, 192}, {}).outputs, 0);
}

TEST(CudaScratch, SortsTakeWhatTheAllocatorsTraceShows) {
  EXPECT_EQ(row_sort_scratch(6, 500).places, 4000);
  const RowSortScratch few = row_sort_scratch(6, 5000);
  EXPECT_EQ(few.places, 240000);
  EXPECT_EQ(few.pairs, 240000);
  EXPECT_EQ(few.keys, 120000);
  EXPECT_EQ(few.temporary, 375039);
  EXPECT_EQ(few.second, 8703);
  const RowSortScratch many = row_sort_scratch(200, 5000);
  EXPECT_EQ(many.places, 8000000);
  EXPECT_EQ(many.temporary, 12000255);
  EXPECT_EQ(many.pairs + many.keys + many.second, 0);
  const RowSortScratch one = row_sort_scratch(1, 5000);
  EXPECT_EQ(one.places, 40000);
  EXPECT_EQ(one.temporary, 70143);
  EXPECT_EQ(one.pairs + one.keys + one.second, 0);
}

// Of torch 2.11 on an H200: index_put_ with accumulate, and stable sorts.
TEST(CudaScratch, SortsOfEveryLengthTakeWhatWasMeasured) {
  struct Pairs {
    std::int64_t limit, n, bytes;
  };
  const std::vector<Pairs> pairs = {
      {100, 2304, 1},        {200, 2305, 3583},    {225, 5512, 4607},      {200, 4608, 3583},
      {200, 4609, 4607},     {200, 10000, 5631},   {200, 16384, 6655},     {200, 65536, 17919},
      {900, 2305, 43007},    {900, 2561, 47103},   {900, 2664, 48639},     {900, 4609, 80895},
      {900, 65536, 1068543}, {70000, 2305, 45055}, {70000, 10000, 169983}, {70000, 65536, 1070591}};
  for (const Pairs& p : pairs)
    EXPECT_EQ(pair_sort_scratch(p.n, p.limit), p.bytes) << p.n << " below " << p.limit;
  struct Rows {
    std::int64_t rows, n, temporary, second;
  };
  const std::vector<Rows> sorts = {{3, 5000, 191999, 5631},
                                   {6, 32000, 2349567, 37375},
                                   {8, 50000, 4885503, 74239},
                                   {64, 50000, 39019007, 571903},
                                   {127, 4097, 6351871, 95743}};
  for (const Rows& s : sorts) {
    const RowSortScratch got = row_sort_scratch(s.rows, s.n);
    EXPECT_EQ(got.temporary, s.temporary) << s.rows << " x " << s.n;
    EXPECT_EQ(got.second, s.second) << s.rows << " x " << s.n;
  }
}

// Elements of a gradient, and four bytes for each block that adds some of them.
TEST(CudaScratch, LongSumsLeaveOnePartialSumABlock) {
  for (const auto& [elements, blocks] : {std::pair{159296, 20}, {462464, 57}, {130000, 0}})
    EXPECT_EQ(row_sum_scratch(1, elements, {}).partial_bytes, 4 * blocks) << elements;
  EXPECT_EQ(row_sum_scratch(4096, 4096, {}).partial_bytes, 0);
}

// Its gradient of q is laid out in multiples of 128 queries and of 32 or 64 dimensions.
TEST(CudaScratch, FlashRoundsToItsTiles) {
  const FlashScratch f = flash_backward_scratch({2, 100, 4, 4, 80}, false, {});
  EXPECT_EQ(f.row_sums, 2 * 4 * 128);
  EXPECT_EQ(f.accumulator, 2 * 128 * 4 * 96);
  EXPECT_EQ(f.key_heads, 0);
  EXPECT_EQ(flash_backward_scratch({2, 100, 4, 4, 160}, false, {}).accumulator, 2 * 128 * 4 * 192);
}

TEST(CudaScratch, ColumnSumsLeaveOnePartialSumABlockAndThread) {
  // Bias gradients of OPT-1.3b at 8 x 1024 tokens. The first was measured: 8 bytes an element.
  const ReductionScratch narrow = column_sum_scratch(8192, 2048, Dtype::kBfloat16, {});
  EXPECT_EQ(narrow.partial_bytes, std::int64_t{8} * 8192 * 2048);
  EXPECT_EQ(narrow.semaphore_bytes, 4 * 16);
  // Four times the columns take no more, because every multiprocessor is busy with fewer blocks each.
  const ReductionScratch wide = column_sum_scratch(8192, 8192, Dtype::kBfloat16, {});
  EXPECT_EQ(wide.partial_bytes, std::int64_t{4} * 8192 * 33 * 128);
  EXPECT_EQ(wide.semaphore_bytes, 4 * 64);
}

TEST(CudaScratch, ColumnsOfFewBlocksAreSharedByMany) {
  EXPECT_EQ(column_sum_scratch(4096, 88, Dtype::kFloat32, {}).partial_bytes, 720896);
  EXPECT_EQ(column_sum_scratch(4098, 56, Dtype::kFloat32, {}).partial_bytes, 121856);
}

TEST(CudaScratch, FewRowsAreSummedByOneBlock) {
  EXPECT_EQ(column_sum_scratch(8, 1 << 20, Dtype::kFloat32, {}).partial_bytes, 0);
  EXPECT_EQ(column_sum_scratch(1023, 64, Dtype::kBfloat16, {}).partial_bytes, 0);
  EXPECT_GT(column_sum_scratch(1024, 128, Dtype::kBfloat16, {}).partial_bytes, 0);
  EXPECT_EQ(column_sum_scratch(4096, 1 << 20, Dtype::kBfloat16, {}).partial_bytes, 0);
}

}  // namespace
}  // namespace neap::step
