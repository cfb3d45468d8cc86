// The same inputs give the same bits, whatever the number of threads and the addresses.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "ops/transformer.h"
#include "tiny_model.h"
#include "unit/ops/passes.h"
#include "weights/initialize.h"

namespace neap::ops {
namespace {

using at::Tensor;

// tiny_model.h sets one thread; these tests set their own.
class Threads : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Threads, ::testing::Values(1, 2, 4),
                         [](const auto& i) { return std::to_string(i.param); });

// Many of few rows: threads that add to one row meet.
TEST_P(Threads, SumsOfRepeatedRowsHaveOneOrder) {
  at::manual_seed(3);
  const Tensor values = at::randn({4096, 64});
  const Tensor rows = at::randint(0, 8, {4096}, at::kLong);
  Tensor expected;
  for (int run = 0; run < 30; ++run) {
    Tensor sum = at::zeros({8, 64});
    AtenOps(at::kCPU).add_to_rows_(sum, rows, values);
    if (!expected.defined()) expected = sum;
    ASSERT_TRUE(at::equal(sum, expected)) << "run " << run;
  }
}

spec::Architecture shape(bool gpt2) {
  spec::Architecture s = gpt2 ? testing::tiny_gpt2() : testing::tiny_llama();
  s.vocab_size = 96;
  s.hidden_size = s.embedding_dim = 128;
  s.intermediate_size = 256;
  s.num_hidden_layers = 2;
  s.head_dim = 32;
  if (!gpt2) s.rotary.dimensions = 32;
  return s;
}

// Gradients of every unit after a forward and backward pass, large enough for kernels to divide.
std::vector<Tensor> gradients(const spec::Architecture& s) {
  std::vector<Tensor> weights, grads;
  for (const auto& unit : spec::flat_layout(s, spec::Head::kLanguageModel)) {
    weights.push_back(at::zeros({unit.elements}, at::kFloat));
    grads.push_back(at::zeros({unit.elements}, at::kFloat));
  }
  Transformer model(s, spec::Head::kLanguageModel, {weights, grads});
  weights::initialize(s, spec::Head::kLanguageModel, 0, weights, 11, 0.1);
  const Tensor tokens = at::arange(8 * 64, at::kLong).mul_(7919).remainder_(s.vocab_size);
  const Tensor weight = at::full({std::int64_t{8} * 64}, 1.0 / (8 * 64), at::kFloat);
  auto tape = forward_train(model, tokens.view({8, 64}));
  const Tensor rows = at::arange(8 * 64, at::kLong).flip(0);
  auto out = cross_entropy(model, tape.hidden, rows, tokens, weight);
  backward(model, std::move(tape), std::move(out.d_hidden));
  return grads;
}

TEST_P(Threads, GradientsHaveTheSameBitsAtOtherAddresses) {
  for (const bool gpt2 : {false, true}) {
    const std::vector<Tensor> expected = gradients(shape(gpt2));
    std::vector<Tensor> ballast;
    for (std::int64_t run = 1; run <= 12; ++run) {
      // Moves what is allocated after it.
      ballast.push_back(at::zeros({run * 4001 + 17}, at::kByte));
      const std::vector<Tensor> grads = gradients(shape(gpt2));
      for (std::size_t unit = 0; unit < grads.size(); ++unit)
        ASSERT_TRUE(at::equal(grads[unit], expected[unit])) << "run " << run << " unit " << unit;
    }
  }
}

}  // namespace
}  // namespace neap::ops
