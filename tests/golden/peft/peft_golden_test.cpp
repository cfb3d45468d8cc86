// Adapters against PEFT's, made by make_goldens.py: what adapted models compute, the gradients of
// adapters, and weights after a merge.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "golden/export.h"
#include "golden/model/golden_weights.h"
#include "ops/transformer.h"
#include "saved_models.h"
#include "spec/model/adapter_config.h"
#include "unit/ops/passes.h"
#include "weights/adapter.h"
#include "weights/checkpoint.h"
#include "weights/merge.h"
#include "weights/model_reader.h"
#include "weights/open_folders.h"
#include "weights/safetensors.h"
#include "weights/tensor_io.h"

namespace neap::weights {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using testing::export_folder;
using testing::to_export;

fs::path here() {
  return fs::path(NEAP_SOURCE_DIR) / "tests/golden/peft";
}
std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(here()))
    if (fs::exists(entry.path() / "golden.safetensors"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

SafetensorsFile goldens_of(const std::string& name) {
  return SafetensorsFile::open(here() / name / "golden.safetensors");
}
spec::Architecture base_of(const SafetensorsFile& goldens) {
  const Json config = value_or_throw(parse_json(goldens.metadata().at("config"), "base"));
  return value_or_throw(spec::Architecture::from_json(config, "base"));
}
bool trains(const spec::AdapterConfig& config, const spec::Architecture& base) {
  return config.check_trainable("", base).ok();
}
/// Others are merged only.
std::vector<std::string> trained_cases() {
  std::vector<std::string> names = cases();
  std::erase_if(names, [](const std::string& name) {
    const spec::Architecture base = base_of(goldens_of(name));
    return !trains(value_or_throw(spec::AdapterConfig::from_folder(here() / name, base)), base);
  });
  return names;
}

class Peft : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    folder_ = here() / GetParam();
    file_.emplace(goldens_of(GetParam()));
    shape_ = base_of(*file_);
    head_ = file_->find("scores") != nullptr ? spec::Head::kScalar : spec::Head::kLanguageModel;
    config_ = value_or_throw(spec::AdapterConfig::from_folder(folder_, shape_));
    units_ = spec::flat_layout(shape_, head_);
    for (const auto& unit : units_) weights_.push_back(at::zeros({unit.elements}, at::kDouble));
    base_.emplace(shape_, head_, ops::FlatTensors{weights_, {}});
    testing::fill_golden_weights(*base_);
    tokens_ = at::empty({2, 9}, at::kLong);
    const TensorEntry& tokens = entry_of(*file_, "tokens");
    file_->read(tokens, 0, {static_cast<std::byte*>(tokens_.data_ptr()), tokens_.nbytes()});
  }

  [[nodiscard]] Tensor stored(const std::string& name) const {
    return read_float(*file_, entry_of(*file_, name)).to(at::kDouble);
  }
  [[nodiscard]] std::map<std::string, Tensor> stored_with(const std::string& prefix) const {
    std::map<std::string, Tensor> out;
    for (const TensorEntry& entry : file_->tensors())
      if (entry.name.starts_with(prefix))
        out.emplace(entry.name.substr(prefix.size()), stored(entry.name));
    return out;
  }
  /// Of every position: logits or scores.
  [[nodiscard]] Tensor outputs(ops::Transformer& model, const Tensor& hidden) const {
    return head_ == spec::Head::kScalar ? scores(model, hidden) : logits(model, hidden);
  }
  [[nodiscard]] Tensor wanted() const {
    const Tensor out = stored(head_ == spec::Head::kScalar ? "scores" : "logits");
    return head_ == spec::Head::kScalar ? out.view(-1) : out.flatten(0, 1);
  }
  static void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    const double scale = 1 + expected.abs().max().item<double>();
    EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-6 * scale) << what;
  }
  /// The base with the adapter beside it, as PEFT computes.
  ops::Transformer adapted() {
    for (const auto& unit : spec::lora_layout(shape_, head_, config_.lora)) {
      adapters_.push_back(at::zeros({unit.elements}, at::kDouble));
      grads_.push_back(at::zeros({unit.elements}, at::kDouble));
    }
    AdapterReader(folder_, shape_, head_, config_.lora).read(0, adapters_);
    return {shape_, head_, ops::FlatTensors{weights_, {}},
            ops::Lora{config_.lora, {adapters_, grads_}}};
  }

  fs::path folder_;
  std::optional<SafetensorsFile> file_;
  spec::Architecture shape_;
  spec::Head head_ = spec::Head::kLanguageModel;
  spec::AdapterConfig config_;
  std::vector<spec::FlatUnit> units_;
  std::vector<Tensor> weights_, adapters_, grads_;
  std::optional<ops::Transformer> base_;
  Tensor tokens_;
};
const auto kName = [](const auto& i) { return i.param; };
INSTANTIATE_TEST_SUITE_P(Adapters, Peft, ::testing::ValuesIn(cases()), kName);

class TrainedPeft : public Peft {};
INSTANTIATE_TEST_SUITE_P(Adapters, TrainedPeft, ::testing::ValuesIn(trained_cases()), kName);

// Writes what check_peft.py opens with PEFT.
class ExportedPeft : public Peft {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExportedPeft);
INSTANTIATE_TEST_SUITE_P(Adapters, ExportedPeft, ::testing::ValuesIn(to_export(cases())), kName);

TEST(PeftGoldens, CoverEveryKindThatIsRead) {
  const std::vector<std::string> names = cases();
  EXPECT_EQ(names.size(), 12u);
  EXPECT_EQ(trained_cases().size(), 7u);
}

TEST_P(TrainedPeft, AdaptedModelsComputeWhatPeftComputes) {
  ops::Transformer model = adapted();
  expect_close(outputs(model, forward(model, tokens_)), wanted(), "outputs");
}

TEST_P(TrainedPeft, GradientsOfAdaptersArePeftsOwn) {
  ops::Transformer model = adapted();
  auto tape = forward_train(model, tokens_);
  const Tensor weights = at::linspace(-0.5, 1.5, tokens_.numel(), at::kDouble);
  if (head_ == spec::Head::kScalar) {
    const Tensor rows = at::arange(tokens_.numel(), at::kLong);
    const Tensor d_hidden = scores_backward(model, tape.hidden, rows, weights);
    backward(model, std::move(tape), d_hidden);
  } else {
    const Tensor targets = at::arange(tokens_.numel(), at::kLong).mul(5).add(3).remainder(29);
    const Tensor d_hidden = cross_entropy(model, tape.hidden, {}, targets, weights).d_hidden;
    backward(model, std::move(tape), d_hidden);
  }
  const auto expected = stored_with("grad.");
  for (const ops::NamedParameter& adapter : model.adapters()) {
    ASSERT_TRUE(expected.contains(adapter.name)) << adapter.name;
    expect_close(adapter.grad, expected.at(adapter.name), adapter.name);
  }
  EXPECT_EQ(model.adapters().size(), expected.size());
}

TEST_P(Peft, MergedWeightsArePefts) {
  const FolderAdapter adapter(folder_, shape_, units_, OpenFolders());
  std::vector<Tensor> before;
  for (const ops::NamedParameter& p : base_->parameters()) before.push_back(p.weight.clone());
  for (std::size_t u = 0; u < units_.size(); ++u) adapter.apply(u, weights_[u]);
  auto expected = stored_with("merged.");
  for (std::size_t i = 0; const ops::NamedParameter& p : base_->parameters()) {
    if (expected.contains(p.name)) expect_close(p.weight, expected.at(p.name), p.name);
    const bool changed = !at::equal(p.weight, before[i++]);
    EXPECT_EQ(expected.erase(p.name), changed ? 1U : 0U) << p.name;
  }
  EXPECT_TRUE(expected.empty()) << expected.begin()->first;
  expect_close(outputs(*base_, forward(*base_, tokens_)), wanted(), "outputs");
}

TEST_P(ExportedPeft, WritesFoldersForPeft) {
  const fs::path base = fs::path(export_folder()) / GetParam() / "base";
  const fs::path merged = fs::path(export_folder()) / GetParam() / "merged";
  std::vector<Tensor> narrow;
  for (const Tensor& unit : weights_) narrow.push_back(unit.to(at::kFloat));
  save_model(base, shape_, head_, narrow);
  merge_adapter({base, folder_}, merged);
  save_tensors(fs::path(export_folder()) / GetParam() / "expected.safetensors",
               {{"tokens", tokens_}, {"out", wanted()}});
  if (!trains(config_, shape_)) return;
  (void)adapted();
  std::vector<Tensor> adapters;
  for (const Tensor& unit : adapters_) adapters.push_back(unit.to(at::kFloat));
  save_adapter(fs::path(export_folder()) / GetParam() / "adapter", shape_, head_, config_.lora,
               adapters, base.string());
}

}  // namespace
}  // namespace neap::weights
