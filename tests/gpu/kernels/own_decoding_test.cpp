// Neap's kernels of a decoding step on a card against the operations that they replace.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "bridge/no_autograd.h"
#include "ops/aten_ops.h"
#include "step/rotation.h"

namespace neap::ops {
namespace {

using at::Tensor;

bool has_cuda() {
  static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  return loaded && at::hasCUDA();
}

class OwnDecoding : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
    at::manual_seed(7);
  }
  [[nodiscard]] Tensor random(at::IntArrayRef sizes, double spread = 1) const {
    return at::randn(sizes, at::kDouble).mul_(spread).to(at::Device(at::kCUDA, 0), GetParam());
  }
  static double off(const Tensor& actual, const Tensor& expected) {
    return (actual.to(at::kCPU, at::kDouble) - expected.to(at::kCPU, at::kDouble))
        .abs()
        .max()
        .item<double>();
  }

  AtenOps own_{at::Device(at::kCUDA, 0), {.own = {true}}};
  AtenOps host_{at::kCPU};
  const bridge::NoAutograd no_autograd_;
};
INSTANTIATE_TEST_SUITE_P(Types, OwnDecoding, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& i) { return std::string(c10::toString(i.param)); });

// The same results come from tables of cosines, a rotation of queries and of keys, and a copy into each cache.
TEST_P(OwnDecoding, HeadsAreTurnedAndStored) {
  struct Case {
    std::int64_t rows, heads, groups, width, turned;
    bool joined, biased;
    double factor;
  };
  for (const Case& c :
       {Case{8, 14, 2, 64, 64, false, false, 1}, Case{64, 32, 8, 128, 128, true, false, 1},
        Case{3, 8, 1, 256, 256, true, true, 1}, Case{5, 4, 4, 80, 32, false, true, 1.25},
        Case{1, 32, 32, 64, 0, true, true, 1}, Case{2, 3, 3, 10, 6, false, false, 1},
        Case{0, 2, 2, 64, 64, false, false, 1}}) {
    SCOPED_TRACE(c.width);
    const std::int64_t tokens = 4000;
    const auto heads_of = [&]() -> step::Heads<Tensor> {
      if (!c.joined)
        return {random({c.rows, c.heads, c.width}), random({c.rows, c.groups, c.width}),
                random({c.rows, c.groups, c.width})};
      const Tensor all = random({c.rows, c.heads + 2 * c.groups, c.width});
      return {all.narrow(1, 0, c.heads), all.narrow(1, c.heads, c.groups),
              all.narrow(1, c.heads + c.groups, c.groups)};
    };
    step::Heads<Tensor> heads = heads_of();
    if (c.biased) {
      heads.q_bias = random({c.heads * c.width}, 3);
      heads.k_bias = random({c.groups * c.width}, 3);
      heads.v_bias = random({c.groups * c.width}, 3);
    }
    step::Rotations<Tensor> rotations;
    if (c.turned > 0) {
      rotations.all.frequencies =
          at::pow(10000, at::arange(0, c.turned, 2, at::kFloat).div(-c.turned)).to(at::kCUDA);
      rotations.all.attention_factor = c.factor;
    }
    const Tensor positions = at::randint(tokens, {c.rows}, at::kLong).to(at::kCUDA);
    const auto cache = [&] {
      return at::zeros({c.rows + 1, c.groups, tokens, c.width}, heads.q.options());
    };
    const Tensor keys = cache(), values = cache();
    const Tensor other_keys = keys.clone(), other_values = values.clone();
    const Tensor q = own_.append_(keys, values, positions, heads, rotations.all);

    const auto biased = [](const Tensor& t, const Tensor& bias) {
      return bias.defined() ? t.add(bias.view({1, t.size(1), t.size(2)})) : t;
    };
    const step::Rows<Tensor> rows =
        step::make_rows(own_, own_.dtype(q), {c.rows, 1}, positions, rotations);
    const auto turned = [&](const Tensor& t) {
      return c.turned > 0 ? own_.rotate(t, rows.cos, rows.sin, false) : t;
    };
    own_.write_token_(other_keys, positions, turned(biased(heads.k, heads.k_bias)));
    own_.write_token_(other_values, positions, biased(heads.v, heads.v_bias));
    EXPECT_TRUE(q.is_contiguous());
    // Sums of two products may be rounded in another order.
    const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 2e-6;
    EXPECT_TRUE(at::allclose(q, turned(biased(heads.q, heads.q_bias)), unit, 4e-6));
    EXPECT_TRUE(at::allclose(keys, other_keys, unit, 4e-6));
    EXPECT_TRUE(at::equal(values, other_values));
  }
}

TEST_P(OwnDecoding, NormsAndTheRowAddedBehind) {
  const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 4e-6;
  for (const std::int64_t columns : {1, 7, 64, 896, 2048, 5120, 20000}) {
    for (const auto kind :
         {spec::NormKind::kRms, spec::NormKind::kRmsOffset, spec::NormKind::kLayerNorm}) {
      for (const bool adds : {true, false}) {
        for (const std::int64_t rows : {1, 33}) {
          SCOPED_TRACE(columns);
          const bool layer = kind == spec::NormKind::kLayerNorm;
          const Tensor x = random({rows, columns}, 3).add_(layer ? 5 : 0);
          const Tensor weight = random({columns});
          const Tensor bias = layer ? random({columns}) : Tensor();
          const Tensor added = adds ? random({columns}) : Tensor();
          const auto exact = [](const Tensor& t) {
            return t.defined() ? t.to(at::kCPU, at::kDouble) : t;
          };
          const Tensor expected = host_.norm(kind, exact(x), exact(weight), exact(bias), 1e-5).y;
          const Tensor sum = adds ? x.add(added) : x.clone();
          const Tensor y = own_.norm_and_add_(kind, x, weight, bias, 1e-5, added);
          EXPECT_LT(off(y, expected), unit * std::max(1.0, expected.abs().max().item<double>()));
          EXPECT_TRUE(at::equal(x, sum));
        }
      }
    }
  }
}

TEST_P(OwnDecoding, ProductsOfStackedMatrices) {
  for (const std::int64_t rows : {1, 8, 33}) {
    const Tensor x = random({rows, 96});
    // Biases lie between the matrices of a unit.
    const Tensor flat = random({3 * (64 * 96 + 64)});
    const Tensor w = flat.as_strided({3, 64, 96}, {64 * 96 + 64, 96, 1});
    const Tensor all = own_.products(x, w);
    for (std::int64_t i = 0; i < 3; ++i) {
      const Tensor expected = x.to(at::kDouble).mm(w[i].to(at::kDouble).t());
      EXPECT_LT(off(all[i], expected), GetParam() == at::kBFloat16 ? 0.25 : 2e-2);
    }
  }
}

}  // namespace
}  // namespace neap::ops
