// Norms of gradients that leave for the host are computed behind a block's backward, and read once none is left.
#include <gtest/gtest.h>

#include <vector>

#include "spec/model/layout.h"
#include "spec/model/tensor_parallel.h"
#include "step/counting/counting_ops.h"
#include "step/units/gradient_norm.h"
#include "step/units/units.h"

namespace neap::step {
namespace {

using T = CountedTensor;

class Held final : public MemorySink {
 public:
  std::uint64_t allocate(std::int64_t) override { return ++tensors; }
  void release(std::uint64_t) override { --tensors; }
  std::uint64_t tensors = 0;
};

struct ReadingOps : CountingOps {
  using CountingOps::CountingOps;
  [[nodiscard]] std::vector<double> read_all(const T& t) const {
    ++reads;
    return CountingOps::read_all(t);
  }
  mutable int reads = 0;
};

class Source final : public BlockSource<T> {
 public:
  explicit Source(std::int64_t elements) : gradients_(T::outside({elements}, Dtype::kFloat32)) {}
  void begin_mini_batch(std::int64_t) override {}
  void expect(Sweep, std::int64_t, const spec::BlockChunk&) override {}
  void begin_group(std::int64_t) override {}
  T inputs(std::int64_t, std::int64_t) override { return {}; }
  const Block<T>& use(std::size_t, BlockUse) override { return block_; }
  void release(std::size_t) noexcept override {}
  [[nodiscard]] bool has_gradients() const override { return true; }
  [[nodiscard]] bool has_turn(Table, BlockUse) const override { return false; }
  void use_table(Table, BlockUse) override {}
  void release_table() noexcept override {}
  T new_gradients(UnitKey) override { return {}; }
  T complete_gradients(UnitKey) override { return gradients_; }

 private:
  T gradients_;
  Block<T> block_;
};

TEST(NormsOfLeavingGradients, AreReadWhenTheMiniBatchEnds) {
  spec::FlatUnit unit;
  unit.parameters.emplace_back().shape = {3 * spec::kSumTile + 5};
  unit.elements = 3 * spec::kSumTile + 64;
  Held memory;
  ReadingOps ops(memory, KernelProfile{}, 1);
  Source source(unit.elements);
  for (UnitKey block = 3; block-- > 0;) {
    UsedGradients<T>(&source, nullptr, block).end([&](UnitKey, const T& gradients) {
      return part_norms(ops, unit, 0, gradients, spec::TensorShard());
    });
  }
  EXPECT_EQ(ops.reads, 0);
  EXPECT_EQ(memory.tensors, 3);

  source.read_norms(ops);
  EXPECT_EQ(ops.reads, 3);
  EXPECT_EQ(memory.tensors, 0);
  for (UnitKey block = 0; block < 3; ++block) EXPECT_EQ(source.norms(block).size(), 4);  // of tiles

  source.read_norms(ops);  // nothing was kept since
  EXPECT_EQ(ops.reads, 3);
}

TEST(NormsOfLeavingGradients, AreZeroWhereAnotherRankCounts) {
  Held memory;
  ReadingOps ops(memory, KernelProfile{}, 1);
  const RangeNorms<T> norms{ops.empty({3}, Dtype::kFloat32), {true, false, true}};
  EXPECT_EQ(norms.read(ops), (std::vector<double>{1, 0, 1}));
  EXPECT_TRUE(RangeNorms<T>().read(ops).empty());
}

}  // namespace
}  // namespace neap::step
