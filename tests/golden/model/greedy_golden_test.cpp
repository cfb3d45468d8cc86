// Greedy texts of rollout::generate against those of transformers' generate(), made by make_goldens.py.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "golden_weights.h"
#include "ops/transformer.h"
#include "rollout/generator.h"
#include "weights/safetensors.h"

namespace neap::rollout {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(NEAP_SOURCE_DIR) / "tests/golden/model";
constexpr std::int64_t kPromptTokens = 9, kNewTokens = 64;
using Texts = std::vector<std::vector<std::int64_t>>;

const Json& goldens() {
  static const Json all =
      value_or_throw(parse_json(value_or_throw(read_file(kFolder / "greedy.json")), "greedy.json"));
  return all;
}
std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, golden] : goldens().items()) out.push_back(name);
  return out;
}

class Greedy : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    const Json& golden = goldens()[GetParam()];
    const auto file = weights::SafetensorsFile::open(kFolder / (GetParam() + ".safetensors"));
    Json config = value_or_throw(parse_json(file.metadata().at("config"), GetParam()));
    config.update(golden["config"]);
    shape_ = value_or_throw(spec::Architecture::from_json(config, GetParam()));
    wanted_ = golden["tokens"].get<Texts>();
    for (std::size_t row = 0; row < wanted_.size(); ++row) {
      Prompt& prompt = prompts_.emplace_back();
      for (std::int64_t i = 0; i < kPromptTokens; ++i)
        prompt.tokens.push_back((static_cast<std::int64_t>(row) * kPromptTokens + i) * 11 % 28 + 1);
    }
  }

  ops::Transformer make(at::ScalarType type) const {
    ops::FlatTensors flat;
    for (const auto& unit : spec::flat_layout(shape_, spec::Head::kLanguageModel))
      flat.weights.push_back(at::zeros({unit.elements}, at::kDouble));
    const ops::Transformer filled(shape_, spec::Head::kLanguageModel, flat);
    neap::testing::fill_golden_weights(filled);
    for (const ops::NamedParameter& p : filled.parameters())
      if (p.weight.dim() == 2)
        at::Tensor(p.weight).mul_(goldens()[GetParam()]["scale"].get<double>());
    for (at::Tensor& unit : flat.weights) unit = unit.to(type);
    return {shape_, spec::Head::kLanguageModel, std::move(flat)};
  }

  Texts texts(at::ScalarType type, std::int64_t rows, spec::PrefillShape prefill) {
    ops::Transformer model = make(type);
    const std::int64_t width = kPromptTokens + kNewTokens;
    ops::KvCache cache = ops::KvCache::over(
        at::zeros({ops::KvCache::elements(shape_, rows, width)}, type), shape_, rows, width);
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.prompt_width = kPromptTokens;
    options.max_new_tokens = kNewTokens;
    options.prefill = prefill;
    Texts out;
    for (const Response& response : generate(model, cache, prompts_, options))
      out.push_back(response.tokens);
    return out;
  }

  spec::Architecture shape_;
  std::vector<Prompt> prompts_;
  Texts wanted_;
};
INSTANTIATE_TEST_SUITE_P(Models, Greedy, ::testing::ValuesIn(names()),
                         [](const auto& i) { return i.param; });

TEST(GreedyGoldens, AreThereForEveryModel) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = entry.path().stem();
    ASSERT_TRUE(goldens().contains(name)) << name;
    for (const Json& text : goldens()[name]["tokens"])
      EXPECT_EQ(text.size(), static_cast<std::size_t>(kNewTokens)) << name;
  }
}

TEST_P(Greedy, TextsAreHuggingFaces) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    SCOPED_TRACE(c10::toString(type));
    EXPECT_EQ(texts(type, 2, {2, kPromptTokens}), wanted_) << "together";
    EXPECT_EQ(texts(type, 1, {1, kPromptTokens}), wanted_) << "one after another";
    EXPECT_EQ(texts(type, 2, {1, 4}), wanted_) << "prompts in chunks";
  }
}

}  // namespace
}  // namespace neap::rollout
