// Logits, gradients, scores and training steps against Hugging Face's, made by make_goldens.py; and
// folders for check_transformers.py.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "base/json.h"
#include "golden/export.h"
#include "golden_weights.h"
#include "ops/transformer.h"
#include "saved_models.h"
#include "spec/model/architecture_file.h"
#include "unit/ops/passes.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/tensor_io.h"

namespace neap::ops {
namespace {

using at::Tensor;
using testing::export_folder;
using testing::to_export;

std::filesystem::path folder() {
  return std::filesystem::path(NEAP_SOURCE_DIR) / "tests/golden/model";
}
std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder()))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    file_.emplace(weights::SafetensorsFile::open(folder() / (GetParam() + ".safetensors")));
    const Json config = value_or_throw(parse_json(file_->metadata().at("config"), GetParam()));
    shape_ = value_or_throw(spec::Architecture::from_json(config, GetParam()));
  }

  [[nodiscard]] Tensor stored(const std::string& name) const {
    const weights::TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw std::runtime_error("the golden file lacks " + name);
    const auto dtype = entry->dtype == "I64"   ? at::kLong
                       : entry->dtype == "F64" ? at::kDouble
                                               : at::kFloat;
    Tensor t = at::empty(entry->shape, dtype);
    file_->read(*entry, 0, {static_cast<std::byte*>(t.data_ptr()), t.nbytes()});
    return dtype == at::kLong ? t : t.to(at::kDouble);
  }

  Transformer make(spec::Head head, at::ScalarType type = at::kDouble) {
    grads_.clear();
    weights_.clear();
    for (const auto& unit : spec::flat_layout(shape_, head)) {
      weights_.push_back(at::zeros({unit.elements}, at::kDouble));
      grads_.push_back(at::zeros({unit.elements}, type));
    }
    neap::testing::fill_golden_weights({shape_, head, {weights_, {}}});
    for (Tensor& unit : weights_) unit = unit.to(type);
    return {shape_, head, {weights_, grads_}};
  }

  // Hugging Face's norms and softmax are float32 inside, whatever the model's type.
  static void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                           double tolerance = 3e-6) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    const double scale = 1 + expected.abs().max().item<double>();
    EXPECT_LT((actual - expected).abs().max().item<double>(), tolerance * scale) << what;
  }

  std::optional<weights::SafetensorsFile> file_;
  spec::Architecture shape_;
  std::vector<Tensor> weights_, grads_;
};
const auto kName = [](const auto& i) { return i.param; };
INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(models()), kName);

// transformers has a scalar head for these.
class ScoredGolden : public Golden {};
std::vector<std::string> scored_models() {
  std::vector<std::string> names = models();
  std::erase_if(names, [](const std::string& name) {
    const auto file = weights::SafetensorsFile::open(folder() / (name + ".safetensors"));
    return file.find("scores") == nullptr;
  });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Models, ScoredGolden, ::testing::ValuesIn(scored_models()), kName);

// Writes what check_transformers.py opens with transformers.
class ExportedGolden : public Golden {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExportedGolden);
INSTANTIATE_TEST_SUITE_P(Models, ExportedGolden, ::testing::ValuesIn(to_export(models())), kName);

TEST(Goldens, CoverEveryArchitectureAndRotaryKind) {
  std::set<std::string> types;
  std::set<spec::Rotary::Scaling> scalings;
  for (const std::string& name : models()) {
    const auto file = weights::SafetensorsFile::open(folder() / (name + ".safetensors"));
    const Json config = value_or_throw(parse_json(file.metadata().at("config"), name));
    const auto a = value_or_throw(spec::Architecture::from_json(config, name));
    types.insert(a.model_type);
    if (a.rotary.dimensions > 0) scalings.insert(a.rotary.scaling);
  }
  for (const spec::ArchitectureFile* file : spec::architecture_files())
    EXPECT_TRUE(types.contains(std::string(file->model_type))) << file->model_type;
  EXPECT_EQ(scored_models().size() + 1, models().size());  // Granite's has none
  using Scaling = spec::Rotary::Scaling;
  EXPECT_EQ(scalings, (std::set<Scaling>{Scaling::kNone, Scaling::kLinear, Scaling::kDynamic,
                                         Scaling::kYarn, Scaling::kLlama3, Scaling::kLongrope}));
}

TEST_P(Golden, LogitsAreHuggingFaces) {
  Transformer model = make(spec::Head::kLanguageModel);
  const Tensor hidden = forward(model, stored("tokens"));
  expect_close(logits(model, hidden), stored("logits"), "logits");
}

// float32 adds the rounding of its own sums.
struct Precision {
  at::ScalarType type;
  double gradients, losses;
};
constexpr Precision kPrecisions[] = {{at::kDouble, 5e-6, 1e-6}, {at::kFloat, 1e-5, 1e-6}};

TEST_P(Golden, EveryGradientIsHuggingFaces) {
  for (const Precision& precision : kPrecisions) {
    SCOPED_TRACE(c10::toString(precision.type));
    Transformer model = make(spec::Head::kLanguageModel, precision.type);
    auto tape =
        forward_train(model, stored("tokens"),
                      spec::checkpointing(spec::CheckpointMode::kFull, model.architecture()));
    // float32 weights were used on the other side; linspace in float64 differs in the last bits only.
    const auto out = cross_entropy(model, tape.hidden, {}, stored("targets"),
                                   stored("weights").to(precision.type),
                                   {.chunk_elements = 5 * shape_.vocab_size});
    backward(model, std::move(tape), out.d_hidden);
    std::size_t compared = 0;
    for (const auto& p : model.parameters()) {
      expect_close(p.grad.to(at::kDouble), stored("grad." + p.name), p.name, precision.gradients);
      ++compared;
    }
    std::size_t known = 0;
    for (const auto& t : file_->tensors()) known += t.name.starts_with("grad.");
    EXPECT_EQ(compared, known);
  }
}

// torch's AdamW with make_goldens.py's settings.
TEST_P(Golden, ThreeTrainingStepsAreHuggingFaces) {
  for (const Precision& precision : kPrecisions) {
    SCOPED_TRACE(c10::toString(precision.type));
    Transformer model = make(spec::Head::kLanguageModel, precision.type);
    std::vector<Tensor> averages, squares;
    for (const Tensor& unit : weights_) {
      averages.push_back(at::zeros_like(unit));
      squares.push_back(at::zeros_like(unit));
    }
    spec::OptimizerConfig config;
    config.beta2 = 0.99;
    config.weight_decay = 0.1;
    using spec::CheckpointMode;
    const CheckpointMode modes[] = {CheckpointMode::kNone, CheckpointMode::kSelective,
                                    CheckpointMode::kFull};
    const Tensor weights = stored("weights").to(precision.type);
    const Tensor expected = stored("losses");
    for (std::int64_t step = 0; step < expected.size(0); ++step) {
      for (const Tensor& grads : grads_) grads.zero_();
      auto tape =
          forward_train(model, stored("tokens"), spec::checkpointing(modes[step % 3], shape_));
      const auto out = cross_entropy(model, tape.hidden, {}, stored("targets"), weights);
      const double loss = -(out.values.log_probs * weights).sum().item<double>();
      const double golden = expected[step].item<double>();
      EXPECT_NEAR(loss, golden, precision.losses * golden) << "step " << step;
      backward(model, std::move(tape), out.d_hidden);
      for (std::size_t u = 0; u < weights_.size(); ++u) {
        const Tensor count = model.ops().filled_like(weights_[u], static_cast<double>(step + 1));
        model.ops().fused_adamw_(weights_[u], grads_[u], averages[u], squares[u], count, 5e-3,
                                 config);
      }
    }
  }
}

TEST_P(ScoredGolden, AreHuggingFaces) {
  Transformer model = make(spec::Head::kScalar);
  const Tensor hidden = forward(model, stored("tokens"));
  expect_close(scores(model, hidden).view({2, 9}), stored("scores"), "scores");
}

TEST_P(Golden, DecodingGivesTheSameLogits) {
  Transformer model = make(spec::Head::kLanguageModel);
  const Tensor tokens = stored("tokens");
  KvCache cache =
      KvCache::over(at::zeros({KvCache::elements(shape_, 2, 9)}, at::kDouble), shape_, 2, 9);
  const Tensor expected = stored("logits").view({2, 9, -1});
  Tensor hidden = prefill(model, tokens.narrow(1, 0, 4), at::full({2}, 4, at::kLong), cache);
  for (std::int64_t p = 4;; ++p) {
    expect_close(logits(model, hidden), expected.select(1, p - 1), "position " + std::to_string(p));
    if (p == 9) break;
    hidden = decode(model, tokens.select(1, p), at::full({2}, p, at::kLong), cache, p + 1);
  }
}

TEST_P(ExportedGolden, WritesFoldersForTransformers) {
  for (const auto head : {spec::Head::kLanguageModel, spec::Head::kScalar}) {
    const bool scalar = head == spec::Head::kScalar;
    Transformer model = make(head);
    std::vector<Tensor> narrow;
    for (const Tensor& unit : weights_) {
      narrow.push_back(unit.to(at::kFloat));
      unit.copy_(narrow.back());
    }
    const auto to =
        std::filesystem::path(export_folder()) / (GetParam() + (scalar ? "-score" : "-lm"));
    weights::save_model(to, shape_, head, narrow, {.max_shard = Bytes(8'000)});
    const Tensor rows = stored("tokens");
    const Tensor hidden = forward(model, rows);
    const Tensor out =
        scalar ? scores(model, hidden).view({2, 9}) : logits(model, hidden).view({2, 9, -1});
    weights::save_tensors(to / "expected.safetensors", {{"tokens", rows}, {"out", out}});
  }
}

}  // namespace
}  // namespace neap::ops
