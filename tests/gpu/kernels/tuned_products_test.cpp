// Products of large matrices by the fastest of cuBLASLt's algorithms: the same bits before and after the choice.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bridge/no_autograd.h"
#include "gpu/loaded_cuda.h"
#include "ops/aten_products.h"

namespace neap::ops {
namespace {

using at::Tensor;

struct Case {
  const char* name;
  std::int64_t rows, depth, columns;
};
// Linears of Qwen2.5-1.5B and 7B, OPT-350m and Llama-3.1-8B, heads, few rows and a large depth, and rows that are no multiples of tiles.
constexpr Case kCases[] = {{"attention", 16384, 1536, 2048}, {"out", 16384, 1536, 1536},
                           {"up", 16384, 1536, 8960},        {"down", 16384, 8960, 1536},
                           {"gate_up7", 2048, 3584, 37888},  {"down7", 8192, 18944, 3584},
                           {"small", 4096, 1024, 4096},      {"opt", 4096, 2048, 8192},
                           {"rows256", 256, 4096, 28672},    {"odd_rows", 4111, 2048, 8192},
                           {"head", 1024, 1536, 151936},     {"head64", 64, 4096, 128256},
                           {"deep256", 256, 14336, 4096},    {"deep1024", 1024, 18944, 3584}};
constexpr int kCalls = 110;  // more than are timed before the choice

class TunedProducts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(3);
  }
  static Tensor random(std::int64_t rows, std::int64_t columns) {
    return at::randn({rows, columns}, on(at::kBFloat16));
  }
  static at::TensorOptions on(at::ScalarType type) {
    return at::TensorOptions().dtype(type).device(at::kCUDA);
  }
  // Relative to the largest value.
  static void near(const Tensor& actual, const Tensor& a, const Tensor& b) {
    const std::int64_t rows = std::min<std::int64_t>(a.size(0), 256);
    const Tensor exact = at::mm(a.narrow(0, 0, rows).to(at::kDouble), b.to(at::kDouble));
    const Tensor off = (actual.narrow(0, 0, rows).to(at::kDouble) - exact).abs().max();
    EXPECT_LT(off.item<double>(), exact.abs().max().item<double>() / 128);
  }
  // Calls until an algorithm is chosen. Each result has the bits of the first one.
  void calls_agree(const Tensor& out, const Tensor& a, const Tensor& b, bool adds,
                   const Tensor& bias = {}) const {
    const Tensor start = at::randn(out.sizes(), on(out.scalar_type()));
    Tensor first;
    for (int call = 0; call < kCalls; ++call) {
      if (adds) {
        out.copy_(start);
      } else {
        out.fill_(-1);
      }
      ASSERT_TRUE(multiply_tuned(own_, out, a, b, {.adds = adds, .bias = bias}));
      if (call == 0) first = out.clone();
      ASSERT_TRUE(at::equal(out, first)) << "call " << call;
    }
    if (adds) first = first.to(at::kFloat) - start;
    if (bias.defined()) first = first.to(at::kFloat) - bias;
    near(first, a, b);
  }

  step::OwnKernels own_{true, true};
  const bridge::NoAutograd no_autograd_{};
};

TEST_P(TunedProducts, Forward) {
  const Case& c = GetParam();
  calls_agree(at::empty({c.rows, c.columns}, on(at::kBFloat16)), random(c.rows, c.depth),
              random(c.columns, c.depth).t(), false);
  calls_agree(at::empty({c.rows, c.columns}, on(at::kBFloat16)), random(c.rows, c.depth),
              random(c.columns, c.depth).t(), false, at::randn({c.columns}, on(at::kBFloat16)));
}
TEST_P(TunedProducts, GradientOfTheInput) {
  const Case& c = GetParam();
  const Tensor dx = at::empty({c.rows, c.depth}, on(at::kBFloat16));
  const Tensor dy = random(c.rows, c.columns), w = random(c.columns, c.depth);
  calls_agree(dx, dy, w, false);
  calls_agree(dx, dy, w, true);
}
TEST_P(TunedProducts, GradientOfTheWeights) {
  const Case& c = GetParam();
  const Tensor dy = random(c.rows, c.columns), x = random(c.rows, c.depth);
  calls_agree(at::empty({c.columns, c.depth}, on(at::kBFloat16)), dy.t(), x, false);
  calls_agree(at::empty({c.columns, c.depth}, on(at::kFloat)), dy.t(), x, true);
}
INSTANTIATE_TEST_SUITE_P(Shapes, TunedProducts, ::testing::ValuesIn(kCases),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(TunedProductsOf, OtherMatricesAreLibtorchs) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const bridge::NoAutograd no_autograd;
  const auto made = [](std::int64_t rows, std::int64_t columns, at::ScalarType type) {
    return at::ones({rows, columns}, at::TensorOptions().dtype(type).device(at::kCUDA));
  };
  const auto taken = [&](const step::OwnKernels& own, std::int64_t size, at::ScalarType type) {
    return multiply_tuned(own, made(size, size, type), made(size, size, type),
                          made(size, size, type));
  };
  constexpr std::int64_t kLarge = 4096;
  EXPECT_TRUE(taken({true, true}, kLarge, at::kBFloat16));
  EXPECT_FALSE(taken({true, true}, kLarge / 4, at::kBFloat16)) << "small";
  EXPECT_FALSE(taken({true, true}, kLarge, at::kFloat)) << "another type";
  EXPECT_FALSE(taken({true, false}, kLarge, at::kBFloat16)) << "another GPU";
  EXPECT_FALSE(taken({false, true}, kLarge, at::kBFloat16)) << "switched off";
  const Tensor w = made(kLarge + 1, kLarge, at::kBFloat16);
  EXPECT_FALSE(multiply_tuned({true, true}, made(kLarge, kLarge, at::kBFloat16),
                              made(kLarge, kLarge, at::kBFloat16),
                              w.view(-1).narrow(0, 1, kLarge * kLarge).view({kLarge, kLarge})))
      << "addresses that are not aligned";
}

}  // namespace
}  // namespace neap::ops
