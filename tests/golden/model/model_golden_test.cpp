// Logits, gradients and scores against Hugging Face's, made by make_goldens.py.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "base/json.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model/transformer.h"

namespace neap::model {
namespace {

using at::Tensor;

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    file_.emplace(SafetensorsFile::open(std::filesystem::path(NEAP_SOURCE_DIR) /
                                        "tests/golden/model" / (GetParam() + ".safetensors")));
    const Json config = value_or_throw(parse_json(file_->metadata().at("config"), GetParam()));
    shape_ = value_or_throw(spec::Architecture::from_json(config, GetParam()));
  }

  Tensor stored(const std::string& name) const {
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw std::runtime_error("the golden file lacks " + name);
    Tensor t = at::empty(entry->shape, entry->dtype == "I64" ? at::kLong : at::kFloat);
    file_->read(*entry, 0, {static_cast<std::byte*>(t.data_ptr()), t.nbytes()});
    return entry->dtype == "I64" ? t : t.to(at::kDouble);
  }

  Transformer make(spec::Head head) {
    grads_.clear();
    std::vector<Tensor> weights;
    for (const auto& unit : spec::flat_layout(shape_, head)) {
      weights.push_back(at::zeros({unit.elements}, at::kDouble));
      grads_.push_back(at::zeros({unit.elements}, at::kDouble));
    }
    Transformer model(shape_, head, {weights, grads_});
    std::vector<NamedParameter> sorted = model.parameters();
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    for (std::size_t place = 0; place < sorted.size(); ++place) {
      Tensor flat = sorted[place].weight.view(-1);
      auto* out = flat.data_ptr<double>();
      const bool norm = sorted[place].weight.dim() == 1 && sorted[place].name.ends_with("weight");
      for (std::int64_t i = 0; i < flat.numel(); ++i) {
        const std::uint64_t mixed = (place * 1000003 + static_cast<std::uint64_t>(i)) * 2654435761u;
        out[i] = (static_cast<double>((mixed & 0xffffffff) >> 8) / (1 << 24) - 0.5) * 0.4;
        if (norm) out[i] += 1;
      }
    }
    return model;
  }

  static void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    const double scale = 1 + expected.abs().max().item<double>();
    EXPECT_LT((actual - expected).abs().max().item<double>(), 3e-6 * scale) << what;
  }

  std::optional<SafetensorsFile> file_;
  spec::Architecture shape_;
  std::vector<Tensor> grads_;
};
INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         ::testing::Values("llama", "qwen2", "gpt2", "opt", "opt_post_norm"),
                         [](const auto& i) { return i.param; });

TEST_P(Golden, LogitsAreHuggingFaces) {
  Transformer model = make(spec::Head::kLanguageModel);
  const Tensor hidden = model.forward(stored("tokens"));
  expect_close(model.logits(hidden), stored("logits"), "logits");
}

TEST_P(Golden, EveryGradientIsHuggingFaces) {
  Transformer model = make(spec::Head::kLanguageModel);
  auto tape = model.forward_train(
      stored("tokens"), {spec::checkpointing(spec::CheckpointMode::kFull, model.architecture())});
  // float32 weights were used on the other side; linspace in float64 differs in the last bits only.
  const auto out = model.cross_entropy(tape.hidden(), {}, stored("targets"), stored("weights"),
                                       {.chunk_elements = 5 * shape_.vocab_size});
  tape.backward(out.d_hidden);
  std::size_t compared = 0;
  for (const auto& p : model.parameters()) {
    expect_close(p.grad, stored("grad." + p.name), p.name);
    ++compared;
  }
  std::size_t known = 0;
  for (const auto& t : file_->tensors()) known += t.name.starts_with("grad.");
  EXPECT_EQ(compared, known);
}

TEST_P(Golden, ScoresAreHuggingFaces) {
  Transformer model = make(spec::Head::kScalar);
  const Tensor hidden = model.forward(stored("tokens"));
  expect_close(model.scores(hidden).view({2, 9}), stored("scores"), "scores");
}

TEST_P(Golden, DecodingGivesTheSameLogits) {
  Transformer model = make(spec::Head::kLanguageModel);
  const Tensor tokens = stored("tokens");
  KvCache cache =
      KvCache::over(at::zeros({KvCache::elements(shape_, 2, 9)}, at::kDouble), shape_, 2, 9);
  const Tensor expected = stored("logits").view({2, 9, -1});
  Tensor hidden = model.prefill(tokens.narrow(1, 0, 4), at::full({2}, 4, at::kLong), cache);
  for (std::int64_t p = 4;; ++p) {
    expect_close(model.logits(hidden), expected.select(1, p - 1), "position " + std::to_string(p));
    if (p == 9) break;
    hidden = model.decode(tokens.select(1, p), at::full({2}, p, at::kLong), cache, p + 1);
  }
}

}  // namespace
}  // namespace neap::model
