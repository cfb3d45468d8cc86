// Terms of losses: what is summed, how often, and what becomes of a mask without tokens.
#include "step/operations/loss_numbers.h"

#include <gtest/gtest.h>

#include "step/counting/counting_ops.h"

namespace neap::step {
namespace {

// Counts requests, and the bytes that are held.
class HeldMemory final : public MemorySink {
 public:
  std::uint64_t allocate(std::int64_t bytes) override {
    ++count;
    held += bytes;
    return static_cast<std::uint64_t>(bytes);
  }
  void release(std::uint64_t address) override { held -= static_cast<std::int64_t>(address); }
  int count = 0;
  std::int64_t held = 0;
};

TEST(LossNumbers, ASumThatSeveralNumbersShareIsComputedOnce) {
  HeldMemory memory;
  CountingOps ops(memory, {}, 1);
  const CountedTensor values = CountedTensor::outside({4, 8}, Dtype::kFloat32);
  const LossMask<CountedTensor> mask = CountedTensor::outside({4, 8}, Dtype::kFloat32);
  const LossValue<CountedTensor> chosen = summed(values), rejected = summed(values);
  const KeptNumbers<CountedTensor> kept(
      ops, {{"chosen", chosen}, {"rejected", rejected}, {"margin", chosen - rejected}});
  EXPECT_EQ(memory.count, 3) << "two sums, and the tensor that is copied";
  memory.count = 0;
  const KeptNumbers<CountedTensor> means(
      ops, {{"a", mask.mean(values), mask.count}, {"b", 1 - mask.mean(values), mask.count}});
  EXPECT_EQ(memory.count, 6) << "two products with their sums, one count, and the copied tensor";
  EXPECT_EQ(memory.held, 0) << "nothing stays on the device";
}

TEST(LossNumbers, AreQuotientsOfSums) {
  HeldMemory memory;
  CountingOps ops(memory, {}, 1);  // every sum is 1
  const CountedTensor values = CountedTensor::outside({4, 8}, Dtype::kFloat32);
  const LossMask<CountedTensor> mask = CountedTensor::outside({4, 8}, Dtype::kFloat32);
  const LossValue<CountedTensor> half(weighed(values, values), 0.5);
  const std::vector<double> got =
      read_values(ops, {half, half / 4, 3 - half, half + half, -mask.mean(values) / 2});
  EXPECT_EQ(got, (std::vector<double>{0.5, 0.125, 2.5, 1, -1 / ((1 + 1e-8) * 2)}));
  const auto none = LossValue<CountedTensor>::mean(summed(values), mask.count);
  EXPECT_EQ(none.value([](const auto&) { return 0.0; }), 0) << "a mask without tokens";
}

}  // namespace
}  // namespace neap::step
