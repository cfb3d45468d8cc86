// The transformer on a card against itself on the CPU.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "bridge/compute_stream.h"
#include "gpu/loaded_cuda.h"
#include "unit/ops/passes.h"
#include "unit/ops/tiny_model.h"
#include "weights/tensor_io.h"

namespace neap::ops {
namespace {

using at::Tensor;
using testing::Form;
using testing::TestModel;
using testing::tokens;

// Wide enough for the fused kernels.
std::vector<Form> forms() {
  std::vector<Form> out = testing::forms();
  for (Form& form : out) {
    if (!form.shape.projects_embedding()) form.shape.embedding_dim = 64;
    form.shape.hidden_size = 64;
    form.shape.head_dim = 16;
  }
  return out;
}

class OnCard : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no card here";
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, OnCard, ::testing::ValuesIn(forms()),
                         [](const auto& i) { return i.param.name; });

// A copy of `m` on the card, as `dtype`; gradients of bfloat16 are float32, as training has them.
struct Moved {
  std::vector<Tensor> weights, grads;
  Transformer model;
  Moved(const TestModel& m, at::ScalarType dtype)
      : weights(move(m.weights, dtype)),
        grads(move(m.grads, dtype == at::kBFloat16 ? at::kFloat : dtype)),
        model(m.shape, m.head, {weights, grads}, std::nullopt, std::nullopt, {.own = {true}}) {}
  static std::vector<Tensor> move(const std::vector<Tensor>& from, at::ScalarType dtype) {
    std::vector<Tensor> to;
    to.reserve(from.size());
    for (const Tensor& t : from) to.push_back(t.to(at::Device(at::kCUDA, 0), dtype));
    return to;
  }
};

// By norms: with ReLU, bfloat16 flips single units, which says nothing of the whole.
double relative(const Tensor& actual, const Tensor& expected) {
  const Tensor a = actual.to(at::kCPU, at::kDouble);
  const Tensor e = expected.to(at::kCPU, at::kDouble);
  return (a - e).norm().item<double>() / (1e-6 + e.norm().item<double>());
}

struct Step {
  Tensor log_probs;
  std::vector<Tensor> grads;
};
Step step(Transformer& model, const std::vector<Tensor>& grads, const Tensor& batch,
          bool recompute) {
  for (const Tensor& g : grads) Tensor(g).zero_();
  const auto n = batch.numel();
  const Tensor targets = tokens(1, n, 41, 5).view(-1).to(batch.device());
  const Tensor weights = at::linspace(0.1, 1, n, at::kFloat).to(batch.device());
  auto tape =
      forward_train(model, batch, recompute ? testing::recompute(model) : spec::Checkpointing{});
  const auto out = cross_entropy(model, tape.hidden, {}, targets, weights);
  backward(model, std::move(tape), out.d_hidden);
  Step s{out.values.log_probs, {}};
  for (const Tensor& g : grads) s.grads.push_back(g.clone());
  return s;
}

double worst(const Step& actual, const Step& expected) {
  double largest = relative(actual.log_probs, expected.log_probs);
  for (std::size_t u = 0; u < expected.grads.size(); ++u)
    largest = std::max(largest, relative(actual.grads[u], expected.grads[u]));
  return largest;
}

TEST_P(OnCard, TrainsAsOnTheCpu) {
  TestModel host(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  const Tensor rows = tokens(3, 24, 41);
  const Step expected = step(*host.model, host.grads, rows, false);
  // What bfloat16 itself costs, on the CPU: the card may not be worse by more than half.
  TestModel narrow(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, at::kBFloat16);
  for (std::size_t u = 0; u < narrow.weights.size(); ++u) narrow.weights[u].copy_(host.weights[u]);
  const double rounding = worst(step(*narrow.model, narrow.grads, rows, false), expected);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 1.5 * rounding}}) {
    Moved card(host, dtype);
    const Tensor moved = rows.to(at::kCUDA);
    const Step actual = step(card.model, card.grads, moved, false);
    const Step again = step(card.model, card.grads, moved, true);
    std::printf("%s: off by %.2g (bfloat16 on the CPU %.2g), recomputed by %.2g\n",
                c10::toString(dtype), worst(actual, expected), rounding, worst(again, actual));
    EXPECT_LT(worst(actual, expected), tolerance) << c10::toString(dtype);
    EXPECT_LT(worst(again, actual), dtype == at::kFloat ? 1e-5 : 1e-2) << c10::toString(dtype);
  }
}

// The real tokens of `batch` (B, T) with `lengths`, padded or packed.
Step step_over(Moved& card, const Tensor& batch, const std::vector<std::int64_t>& lengths,
               bool packed) {
  for (const Tensor& g : card.grads) Tensor(g).zero_();
  AtenOps& ops = card.model.ops();
  const std::int64_t width = batch.size(1);
  std::vector<Tensor> real, places;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Tensor each = at::arange(lengths[i], batch.options());
    places.push_back(each);
    real.push_back(each.add(static_cast<std::int64_t>(i) * width));
  }
  const Tensor rows = at::cat(real);
  const Tensor flat = batch.view(-1);
  step::BatchTokens<Tensor> in = step::of_one_length(flat, width);
  if (packed) {
    in = {flat.index_select(0, rows),
          {std::ssize(lengths), width, lengths, ops.starts_of(lengths)},
          at::cat(places)};
  }
  const auto& w = card.model.weights();
  step::Tape<Tensor> tape = step::forward_train(ops, w, in, {});
  const std::int64_t n = rows.size(0);
  const Tensor targets = tokens(1, n, 41, 5).view(-1).to(batch.device());
  const Tensor weights = at::linspace(0.1, 1, n, at::kFloat).to(batch.device());
  auto out = step::cross_entropy(ops, w, tape.hidden, packed ? Tensor() : rows, targets, weights,
                                 LogProbOptions{});
  step::backward(ops, w, std::move(tape), std::move(out.d_hidden));
  Step s{out.values.log_probs, {}};
  for (const Tensor& g : card.grads) s.grads.push_back(g.clone());
  return s;
}

TEST_P(OnCard, PackedSequencesGiveWhatPaddedOnesDo) {
  const at::NoGradGuard no_grad;
  TestModel host(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  const std::vector<std::int64_t> lengths = {24, 7, 1, 15};
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.1}}) {
    Moved card(host, dtype);
    const Tensor batch = tokens(4, 24, 41).to(at::kCUDA);
    const Step padded = step_over(card, batch, lengths, false);
    const Step packed = step_over(card, batch, lengths, true);
    std::printf("%s: packed off by %.2g\n", c10::toString(dtype), worst(packed, padded));
    EXPECT_LT(worst(packed, padded), tolerance) << c10::toString(dtype);
  }
}

TEST_P(OnCard, DecodesAsItRunsWhole) {
  TestModel host(GetParam().shape, spec::Head::kLanguageModel, std::nullopt, at::kFloat);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 1e-3}, std::pair{at::kBFloat16, 0.03}}) {
    Moved card(host, dtype);
    const Tensor rows = tokens(3, 12, 41).to(at::kCUDA);
    const Tensor whole = forward(card.model, rows).view({3, 12, -1});
    KvCache cache = KvCache::over(at::zeros({KvCache::elements(host.shape, 3, 16)},
                                            at::TensorOptions(at::kCUDA).dtype(dtype)),
                                  host.shape, 3, 16);
    Tensor positions = at::tensor({5, 2, 7}, at::kLong).to(at::kCUDA);
    Tensor hidden = prefill(card.model, rows.narrow(1, 0, 7), positions, cache);
    for (int i = 0; i < 5; ++i) {
      const Tensor next = rows.gather(1, positions.unsqueeze(1)).squeeze(1);
      hidden = decode(card.model, next, positions, cache, 12);
      const Tensor expected =
          whole.gather(1, positions.view({3, 1, 1}).expand({3, 1, whole.size(2)})).squeeze(1);
      EXPECT_LT(relative(hidden, expected), tolerance) << c10::toString(dtype) << " step " << i;
      positions.add_(1);
    }
  }
}

// The causal mask of a chunk ends at the last key: FlashAttention's against the formula on the CPU.
TEST(ChunkOnCard, IsTheEndOfTheWhole) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const at::NoGradGuard no_grad;
  const at::Device card(at::kCUDA, 0);
  AtenOps on_card(card), on_cpu(at::kCPU);
  constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kWidth = 64, kSlot = 900;
  at::manual_seed(3);
  const Tensor keys = at::randn({1, kKeyHeads, kSlot, kWidth}).to(at::kBFloat16);
  const Tensor values = at::randn({1, kKeyHeads, kSlot, kWidth}).to(at::kBFloat16);
  for (const std::int64_t tokens : {8, 130, 700}) {
    for (const std::int64_t last : {2, 7, 128}) {
      if (last > tokens) continue;
      const Tensor q = at::randn({last, kHeads, kWidth}).to(at::kBFloat16);
      const step::ScoreOptions options{1.0};  // a few keys have nearly all the weight
      const auto seen = [&](const Tensor& t) { return t.narrow(2, 0, tokens); };
      ASSERT_TRUE(
          step::chunk_by_flash(options, true, step::Dtype::kBfloat16, kWidth, last, tokens));
      const Tensor got =
          on_card.chunk_attention(q.to(card), seen(keys.to(card)), seen(values.to(card)), options);
      const Tensor expected =
          step::attention_of_last(on_cpu, q.to(at::kFloat), seen(keys).to(at::kFloat),
                                  seen(values).to(at::kFloat), options);
      EXPECT_LT(relative(got.cpu().to(at::kFloat), expected), 0.01) << tokens << " " << last;
    }
  }
}

// Sequences of other lengths, short ones and long ones whose keys are divided between blocks, and queries that are a part
// of something: FlashAttention against the mask on the CPU.
TEST(DecodingOnCard, AttendsToTheKeysThatAreSeen) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const at::NoGradGuard no_grad;
  const at::Device card(at::kCUDA, 0);
  AtenOps on_card(card), on_cpu(at::kCPU);
  constexpr std::int64_t kSlots = 4, kKeyHeads = 2, kWidth = 64, kSlot = 2100, kLimit = 2000;
  at::manual_seed(3);
  const Tensor positions = at::tensor(std::vector<std::int64_t>{0, 700, kLimit - 1});
  const Tensor keys = at::randn({kSlots, kKeyHeads, kSlot, kWidth}).to(at::kBFloat16);
  const Tensor values = at::randn({kSlots, kKeyHeads, kSlot, kWidth}).to(at::kBFloat16);
  for (const std::int64_t heads : {2, 6}) {
    for (const std::int64_t window : {0, 1, 100, 1500}) {
      const step::ScoreOptions options{0.5, 0, window};
      const Tensor all = at::randn({3, 3 * heads, kWidth}).to(at::kBFloat16);
      const bool whole = heads > kKeyHeads;
      const auto queries = [&](const Tensor& t) {
        const Tensor part = t.narrow(1, 0, heads);
        return whole ? part.contiguous() : part;
      };
      const Tensor on = keys.to(card);
      const Tensor got = on_card.decode_attention(
          queries(all.to(card)), on, values.to(card),
          on_card.decode_keys(positions.to(card), on, heads, kLimit, options), options);
      const Tensor exact = keys.to(at::kFloat);
      const Tensor expected = on_cpu.decode_attention(
          queries(all.to(at::kFloat)), exact, values.to(at::kFloat),
          on_cpu.decode_keys(positions, exact, heads, kLimit, options), options);
      EXPECT_LT(relative(got, expected), 0.01) << heads << " heads, window " << window;
    }
  }
}

// What a file has is there, though the caller's stream is long busy with what it zeroes before.
TEST(FilesOnCard, LoadsBeginAfterTheCallersWork) {
  if (!has_cuda()) GTEST_SKIP() << "no card here";
  const c10::Device card(at::kCUDA, 0);
  const auto file = std::filesystem::temp_directory_path() / "neap-loads.safetensors";
  const Tensor saved = at::arange(1, 1 << 25, at::dtype(at::kFloat));  // several pieces
  weights::save_tensors(file, {{"a", saved}});
  const bridge::ComputeStream stream(card);
  const bridge::ComputeStream::Current current(stream);
  const Tensor busy = at::ones({8192, 8192}, at::dtype(at::kFloat).device(card));
  for (const bool sliced : {false, true}) {
    const Tensor loaded = at::ones(saved.sizes(), saved.options().device(card));
    for (int i = 0; i < 20; ++i) at::mm(busy, busy);
    Tensor(loaded).zero_();
    const auto opened = weights::SafetensorsFile::open(file);
    if (sliced) {
      weights::load_slices(opened, {{"a", saved.numel(), 0, loaded}});
    } else {
      weights::load_tensors(opened, {{"a", loaded}});
    }
    EXPECT_TRUE(at::equal(loaded.cpu(), saved)) << sliced;
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace neap::ops
