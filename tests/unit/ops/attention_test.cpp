// Attention in chunks against the plain formula and its derivative by libtorch.
#include "step/attention/attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ops/aten_ops.h"

namespace neap::ops {
namespace {

using at::Tensor;

struct AttentionCase {
  double softcap;
  std::int64_t window, chunk_elements;
};

constexpr std::int64_t kSequences = 2, kLength = 11, kHeads = 4, kKeyHeads = 2, kWidth = 6;

Tensor operand(std::int64_t heads, double seed) {
  const std::int64_t n = kSequences * kLength * heads * kWidth;
  return at::arange(n, at::kDouble).mul_(0.7).add_(seed).sin_().view({-1, heads, kWidth});
}

// (B, H, T, D)
Tensor by_head(const Tensor& t) {
  const Tensor x = t.view({kSequences, kLength, t.size(1), kWidth}).transpose(1, 2);
  return x.size(1) == kHeads ? x : x.repeat_interleave(kHeads / x.size(1), 1);
}

Tensor plain_formula(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCase& c,
                     double scale) {
  Tensor scores = at::matmul(by_head(q), by_head(k).transpose(2, 3)) * scale;
  if (c.softcap > 0) scores = at::tanh(scores / c.softcap) * c.softcap;
  const Tensor place = at::arange(kLength);
  const Tensor distance = place.unsqueeze(1) - place;
  Tensor hidden = distance.lt(0);
  if (c.window > 0) hidden = hidden.logical_or(distance.ge(c.window));
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), by_head(v))
      .transpose(1, 2)
      .reshape({-1, kHeads * kWidth});
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(ChunkedAttention, IsTheFormulaAndItsDerivative) {
  AtenOps ops(at::kCPU);
  constexpr double kScale = 0.9;
  for (const AttentionCase& c :
       {AttentionCase{0.8, 0, 1 << 20}, AttentionCase{0, 3, 1 << 20},
        AttentionCase{0.8, 4, 1 << 20}, AttentionCase{0.8, 0, 200}, AttentionCase{0, 3, 100},
        AttentionCase{0.8, 4, 1}, AttentionCase{0, 1, 1 << 20}, AttentionCase{0, 10, 300}}) {
    SCOPED_TRACE(::testing::Message() << c.softcap << " " << c.window << " " << c.chunk_elements);
    std::vector<Tensor> x = {operand(kHeads, 1), operand(kKeyHeads, 2), operand(kKeyHeads, 3)};
    const Tensor dy = operand(kHeads, 4).view({-1, kHeads * kWidth});
    for (Tensor& t : x) t.set_requires_grad(true);
    const Tensor expected = plain_formula(x[0], x[1], x[2], c, kScale);
    expected.backward(dy);

    const at::NoGradGuard no_grad;
    auto saved = step::chunked_attention(
        ops, step::Heads<Tensor>{x[0].detach(), x[1].detach(), x[2].detach()}, kSequences,
        {kScale, c.softcap, c.window}, c.chunk_elements);
    EXPECT_LT(difference(saved.out, expected), 1e-12);
    const auto d =
        step::chunked_attention_backward(ops, std::move(saved), Tensor(dy), c.chunk_elements);
    EXPECT_LT(difference(d.q, x[0].grad()), 1e-12);
    EXPECT_LT(difference(d.k, x[1].grad()), 1e-12);
    EXPECT_LT(difference(d.v, x[2].grad()), 1e-12);
  }
}

TEST(ChunkedAttention, VisitsEveryQueryOnceWithTheKeysThatItSees) {
  for (const std::int64_t before : {0, 3, 33}) {
    for (const std::int64_t window : {0, 1, 4, 50}) {
      for (const std::int64_t elements : {1, 64, 1000, 1 << 20}) {
        std::int64_t next = 0;
        const auto visit = [&](const step::QueryChunk& c) {
          EXPECT_EQ(c.first, next);
          next += c.count;
          const std::int64_t place = before + c.first;
          EXPECT_EQ(c.first_key + c.keys, place + c.count);
          EXPECT_EQ(c.first_key, window > 0 ? std::max<std::int64_t>(0, place - window + 1) : 0);
          if (c.count > 1) {
            EXPECT_LE(3 * c.count * c.keys, elements);
          }
        };
        step::for_each_query_chunk(3, 20, before + 20, before, window, elements, visit);
        EXPECT_EQ(next, 20);
      }
    }
  }
}

TEST(ChunkedAttention, OfTheLastTokensIsTheEndOfTheWhole) {
  const at::NoGradGuard no_grad;
  AtenOps ops(at::kCPU);
  constexpr double kScale = 0.3;
  constexpr std::int64_t kTokens = 21;
  at::manual_seed(5);
  const auto random = [](std::int64_t heads) {
    return at::randn({kTokens, heads, 4}, at::kDouble);
  };
  const step::Heads<Tensor> x{random(6), random(2), random(2)};
  for (const step::ScoreOptions& options :
       {step::ScoreOptions{kScale}, step::ScoreOptions{kScale, 0.8},
        step::ScoreOptions{kScale, 0, 4}, step::ScoreOptions{kScale, 0, 0, true}}) {
    const Tensor whole = step::chunked_attention(ops, step::Heads<Tensor>(x), 1, options).out;
    for (const std::int64_t last : {1, 5, 20}) {
      for (const std::int64_t elements : {1, 200, 1 << 20}) {
        const auto cached = [](const Tensor& t) { return t.transpose(0, 1).unsqueeze(0); };
        const Tensor got = step::attention_of_last(ops, x.q.narrow(0, kTokens - last, last),
                                                   cached(x.k), cached(x.v), options, elements);
        EXPECT_LT(difference(got, whole.narrow(0, kTokens - last, last)), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace neap::ops
