// Decoding as Neap's kernels compute it, with the kernels' definitions in place of the kernels: their steps in the order
// of a block give what passes over whole sequences give. tests/gpu/kernels compares the kernels with the same operations.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "bridge/no_autograd.h"
#include "unit/operations/random_job.h"
#include "unit/ops/passes.h"
#include "unit/ops/tiny_model.h"

namespace neap::ops {
namespace {

using at::Tensor;
using testing::TestModel;

class KernelDefinitions : public AtenOps {
 public:
  KernelDefinitions() : AtenOps(at::kCPU) {}

  [[nodiscard]] static bool own_kernels(step::Dtype) { return true; }
  void gate_into(const Tensor& out, const Tensor& gate, const Tensor& up,
                 spec::Activation kind) const {
    out.copy_(multiply(activate(gate, kind), up));
  }
  [[nodiscard]] Tensor norm_and_add_(spec::NormKind kind, const Tensor& x, const Tensor& weight,
                                     const Tensor& bias, double eps, const Tensor& added) {
    ++norms;
    Tensor y = norm(kind, x, weight, bias, eps).y.clone();
    if (added.defined()) x.add_(added);
    return y;
  }
  [[nodiscard]] Tensor append_(const Tensor& keys, const Tensor& values, const Tensor& positions,
                               const step::Heads<Tensor>& heads,
                               const step::Rotation<Tensor>& rotation) {
    ++appends;
    const auto biased = [](const Tensor& t, const Tensor& bias) {
      return bias.defined() ? t.add(bias.view({1, t.size(1), t.size(2)})) : t.clone();
    };
    const step::Rows<Tensor> rows =
        step::make_rows(*this, dtype(heads.q), {heads.q.size(0), 1}, positions, {rotation, {}});
    const auto normed = [&](const Tensor& t, const step::RowNorm<Tensor>& by) {
      return normed_rows(t.view({-1, t.size(2)}), by).view(t.sizes());
    };
    const auto turned = [&](const Tensor& t) {
      return rotation.frequencies.defined() ? rotate(t, rows.cos, rows.sin, false) : t;
    };
    write_token_(keys, positions, turned(normed(biased(heads.k, heads.k_bias), heads.k_norm)));
    write_token_(values, positions, biased(heads.v, heads.v_bias));
    return turned(normed(biased(heads.q, heads.q_bias), heads.q_norm));
  }

  [[nodiscard]] bool attends_itself(step::Dtype, const step::DecodeSizes&,
                                    const step::ScoreOptions& options) const {
    return attends && options.softcap == 0 && !options.alibi;
  }
  [[nodiscard]] Tensor append_and_attend_(const Tensor& keys, const Tensor& values,
                                          const Tensor& positions, const step::Heads<Tensor>& heads,
                                          const step::Rotation<Tensor>& rotation,
                                          const step::KeyLimit& limit,
                                          const step::ScoreOptions& options) {
    const Tensor q = append_(keys, values, positions, heads, rotation);
    const auto seen = decode_keys(positions, keys, q.size(1), limit.rounded, options);
    return decode_attention(q, keys, values, seen, options);
  }
  [[nodiscard]] bool own_few_rows(step::Dtype, std::int64_t, std::int64_t, std::int64_t) const {
    return few_rows;
  }
  [[nodiscard]] Tensor normed_rows(const Tensor& x, const step::RowNorm<Tensor>& by) const {
    if (!by.weight.defined()) return x;
    return norm(by.offset == 1 ? spec::NormKind::kRmsOffset : spec::NormKind::kRms, x, by.weight,
                {}, by.eps)
        .y;
  }
  [[nodiscard]] bool own_normed_rows(step::Dtype, std::int64_t, std::int64_t, std::int64_t) const {
    return normalizes;
  }
  [[nodiscard]] Tensor normalized(const Tensor& x, const step::RowsNorm<Tensor>& by) {
    if (!by.weight.defined()) return x;
    ++norms_within;
    return norm(by.kind, x, by.weight, by.bias, by.eps).y;
  }
  [[nodiscard]] Tensor few_rows_products(const Tensor& of, const step::FewMatrices<Tensor>& by) {
    ++products_of_few;
    const Tensor x = normalized(of, by.norm);
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < by.weight.size(); ++i) {
      if (!by.weight[i].defined()) continue;
      const Tensor y = x.mm(by.weight[i].t());
      all.push_back(by.bias[i].defined() ? y.add(by.bias[i]) : y);
    }
    return at::cat(all, 1);
  }
  [[nodiscard]] Tensor few_rows_activated(const Tensor& x, const step::FewMatrices<Tensor>& by,
                                          spec::Activation kind) {
    return activate(few_rows_products(x, by), kind);
  }
  void add_few_rows_(const Tensor& sum, const Tensor& x, const Tensor& w, const Tensor& bias) {
    sum.add_(few_rows_products(x, {{w}, {bias}}));
  }
  [[nodiscard]] Tensor few_rows_gated(const Tensor& of, const step::FewMatrices<Tensor>& by,
                                      spec::Activation kind) {
    const Tensor x = normalized(of, by.norm);
    return multiply(activate(few_rows_products(x, {{by.weight[0]}, {}}), kind),
                    x.mm(by.weight[1].t()));
  }

  void add_row_adapters_(const Tensor& y, const step::RowAdapters<Tensor>& by) {
    y.narrow(1, 0, by.out[0] + by.out[1] + by.out[2]).copy_(adapted(y, by));
  }
  void add_adapted_rows_(const Tensor& sum, const Tensor& y, const step::RowAdapters<Tensor>& by) {
    sum.add_(adapted(y, by));
  }
  [[nodiscard]] Tensor gate_adapted_rows(const Tensor& y, const step::RowAdapters<Tensor>& by,
                                         spec::Activation kind) {
    const Tensor both = adapted(y, by);
    return multiply(activate(both.narrow(1, 0, by.out[0]), kind),
                    both.narrow(1, by.out[0], by.out[1]));
  }

  std::int64_t norms = 0, norms_within = 0, appends = 0, products_of_few = 0, adapters = 0;
  bool attends = false, few_rows = false, normalizes = false;

 private:
  Tensor adapted(const Tensor& y, const step::RowAdapters<Tensor>& by) {
    ++adapters;
    std::int64_t from = 0, down = by.out[0] + by.out[1] + by.out[2];
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < by.up.size(); ++i) {
      Tensor part = y.narrow(1, from, by.out[i]);
      from += by.out[i];
      if (by.up[i].defined()) {
        const std::int64_t rank = by.up[i].size(1);
        part = part.add(y.narrow(1, down, rank).mm(by.up[i].t()), by.scale[i]);
        down += rank;
      }
      all.push_back(part);
    }
    return at::cat(all, 1);
  }
};

struct Compared {
  double off = 0;
  std::int64_t norms = 0, norms_within = 0, appends = 0, products_of_few = 0, adapters = 0;
};

// Five tokens behind prompts of several lengths, against the same rows of whole passes.
Compared decoded_and_whole(const spec::Architecture& shape,
                           const std::optional<spec::LoraShape>& lora = std::nullopt,
                           bool few_rows = false, bool normalizes = false) {
  const bridge::NoAutograd no_autograd;
  TestModel m(shape, spec::Head::kLanguageModel, lora);
  const Tensor rows = testing::tokens(3, 12, shape.vocab_size);
  const Tensor whole = forward(*m.model, rows).view({3, 12, -1});
  const KvCache cache =
      KvCache::over(at::zeros({KvCache::elements(shape, 3, 16)}, at::kDouble), shape, 3, 16);
  Tensor positions = at::tensor({5, 2, 7}, at::kLong);
  Tensor hidden = prefill(*m.model, rows.narrow(1, 0, 7), positions, cache);
  KernelDefinitions ops;
  ops.attends = ops.few_rows = few_rows;
  ops.normalizes = normalizes;
  const auto rotations = step::make_rotations(ops, shape, cache.max_tokens());
  Compared out;
  for (int i = 0; i < 5; ++i) {
    const Tensor next = rows.gather(1, positions.unsqueeze(1)).squeeze(1);
    hidden = step::decode(ops, m.model->weights(), rotations, next, positions, cache, 12);
    const Tensor expected =
        whole.gather(1, positions.view({3, 1, 1}).expand({3, 1, whole.size(2)})).squeeze(1);
    const double size = 1 + expected.abs().max().item<double>();
    out.off = std::max(out.off, testing::largest_difference(hidden, expected) / size);
    positions.add_(1);
  }
  out.norms = ops.norms;
  out.norms_within = ops.norms_within;
  out.appends = ops.appends;
  out.products_of_few = ops.products_of_few;
  out.adapters = ops.adapters;
  return out;
}

TEST(FusedDecoding, OfEveryFormOfBlockIsThatOfWholePasses) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    const Compared found = decoded_and_whole(form.shape);
    EXPECT_LT(found.off, 1e-10);
    EXPECT_EQ(found.appends, 5 * form.shape.num_hidden_layers);
    EXPECT_EQ(found.norms, form.shape.placement.before ? 2 * found.appends : 0);
  }
}

TEST(FusedDecoding, WithAdaptersIsThatOfWholePasses) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    EXPECT_LT(decoded_and_whole(form.shape, spec::LoraShape{3, {"all-linear"}}).off, 1e-10);
  }
}

TEST(FusedDecoding, OfFewRowsIsThatOfWholePasses) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    const Compared found = decoded_and_whole(form.shape, std::nullopt, /*few_rows=*/true);
    EXPECT_LT(found.off, 1e-10);
    EXPECT_EQ(found.appends, 5 * form.shape.num_hidden_layers);
    EXPECT_EQ(found.products_of_few > 0, !form.shape.input_major);
    EXPECT_LT(decoded_and_whole(form.shape, spec::LoraShape{3, {"all-linear"}}, true).off, 1e-10);
  }
}

TEST(FusedDecoding, OfFewRowsNormalizesThemInTheProducts) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    const Compared found =
        decoded_and_whole(form.shape, std::nullopt, /*few_rows=*/true, /*normalizes=*/true);
    EXPECT_LT(found.off, 1e-10);
    EXPECT_EQ(found.norms + found.norms_within,
              form.shape.placement.before ? 2 * found.appends : 0);
    if (form.name == "llama" || form.name == "qwen2" || form.name == "qwen3") {
      EXPECT_EQ(found.norms, 0);
      const spec::LoraShape some{8, {"q_proj", "down_proj"}};
      EXPECT_LT(decoded_and_whole(form.shape, some, true, /*normalizes=*/true).off, 1e-10);
    }
  }
}

TEST(FusedDecoding, OfFewRowsAddsAdaptersToJoinedProducts) {
  for (const testing::Form& form : testing::forms()) {
    SCOPED_TRACE(form.name);
    const Compared found =
        decoded_and_whole(form.shape, spec::LoraShape{8, {"all-linear"}}, /*few_rows=*/true);
    EXPECT_LT(found.off, 1e-10);
    if (form.shape.input_major) {
      EXPECT_EQ(found.adapters, 0);
    } else if (form.name == "llama" || form.name == "qwen2" || form.name == "qwen3") {
      // Heads, the last matrix of attention, gate and up, and the last matrix of the MLP.
      EXPECT_EQ(found.adapters, 4 * found.appends);
    }
  }
  const spec::LoraShape some{16, {"q_proj", "v_proj", "up_proj"}};
  const Compared found = decoded_and_whole(testing::tiny_llama(), some, /*few_rows=*/true);
  EXPECT_LT(found.off, 1e-10);
  EXPECT_EQ(found.adapters, 2 * found.appends);
}

TEST(FusedDecoding, OfRandomModelsIsThatOfWholePasses) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    neap::testing::Dice dice(seed);
    const spec::Architecture shape = neap::testing::random_architecture(dice);
    EXPECT_LT(decoded_and_whole(shape, std::nullopt, /*few_rows=*/seed % 2 == 1).off, 1e-9);
    const spec::LoraShape lora{8, {"all-linear"}};
    EXPECT_LT(decoded_and_whole(shape, lora, /*few_rows=*/true).off, 1e-9);
    EXPECT_LT(decoded_and_whole(shape, std::nullopt, true, /*normalizes=*/true).off, 1e-9);
  }
}

}  // namespace
}  // namespace neap::ops
