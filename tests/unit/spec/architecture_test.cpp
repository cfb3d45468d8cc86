#include "spec/model/architecture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "spec/model/architecture_file.h"
#include "spec/model/layout.h"
#include "unit/spec/read_architecture.h"

namespace neap::spec {
namespace {

namespace fs = std::filesystem;
using Scaling = Rotary::Scaling;

Status status(const Json& config) {
  return Architecture::from_json(config, "config.json").status();
}
/// The failure of `text` with one key set.
Status status_with(const char* text, const char* key, Json value) {
  Json config = Json::parse(text);
  config[key] = std::move(value);
  return status(config);
}

constexpr const char* kLlama = R"({"model_type":"llama"})";
constexpr const char* kQwen2 = R"({"model_type":"qwen2"})";

TEST(Architecture, MissingKeysHaveTheClassesDefaults) {
  const Architecture llama = read_architecture(kLlama);
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(llama.rotary.theta, 10000);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_ids, std::vector<std::int64_t>{2});
  EXPECT_EQ(llama.pad_token_id, -1);
  EXPECT_FALSE(llama.tie_word_embeddings);
  const Architecture qwen = read_architecture(kQwen2);
  EXPECT_EQ(qwen.vocab_size, 151936);
  EXPECT_TRUE(qwen.attention_bias);
  EXPECT_FALSE(qwen.attention_output_bias);
  EXPECT_TRUE(qwen.eos_token_ids.empty());
  EXPECT_EQ(qwen.sliding_window, 0);
  EXPECT_EQ(read_architecture(R"({"model_type":"mistral"})").sliding_window, 4096);
  const Architecture gpt2 = read_architecture(R"({"model_type":"gpt2"})");
  EXPECT_TRUE(gpt2.tie_word_embeddings);
  EXPECT_EQ(gpt2.intermediate_size, 3072);
  EXPECT_EQ(gpt2.activation, Activation::kGeluTanh);
  EXPECT_EQ(gpt2.qkv, QkvLayout::kInTurn);
  EXPECT_TRUE(gpt2.input_major);
  EXPECT_EQ(gpt2.rotary.dimensions, 0);
  const Architecture opt = read_architecture(R"({"model_type":"opt"})");
  EXPECT_EQ(opt.pad_token_id, 1);
  EXPECT_EQ(opt.position_offset, 2);
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_TRUE(opt.final_norm);
}

TEST(Architecture, NullIsAValue) {
  const Architecture a =
      read_architecture(R"({"model_type":"mistral","sliding_window":null,"head_dim":null,
    "num_key_value_heads":null,"bos_token_id":null,"eos_token_id":null,"rope_scaling":null})");
  EXPECT_EQ(a.sliding_window, 0);
  EXPECT_EQ(a.num_key_value_heads, 32);
  EXPECT_EQ(a.head_dim, 128);
  EXPECT_EQ(a.bos_token_id, -1);
  EXPECT_TRUE(a.eos_token_ids.empty());
  EXPECT_EQ(read_architecture(R"({"model_type":"gpt2","n_inner":null})").intermediate_size, 3072);
  EXPECT_NE(status_with(kLlama, "vocab_size", nullptr).message().find("vocab_size is null"),
            std::string::npos);
}

TEST(Architecture, WindowsOfQwenStartAtTheirLayer) {
  Json c = {{"model_type", "qwen2"}, {"num_hidden_layers", 4}, {"use_sliding_window", true}};
  EXPECT_EQ(read_architecture(c).sliding_window, 0);  // max_window_layers 28: no layer slides
  c["max_window_layers"] = 3;
  EXPECT_EQ(read_architecture(c).sliding_window, 4096);
  EXPECT_EQ(read_architecture(c).window_of(2), 0);
  EXPECT_EQ(read_architecture(c).window_of(3), 4096);
  c["layer_types"] =
      Json::array({"full_attention", "full_attention", "full_attention", "full_attention"});
  EXPECT_EQ(read_architecture(c).sliding_window, 0);
  c["layer_types"][1] = "sliding_attention";
  c["max_window_layers"] = 28;
  EXPECT_EQ(read_architecture(c).window_of(0), 0);
  EXPECT_EQ(read_architecture(c).window_of(1), 4096);
  c["use_sliding_window"] = false;
  EXPECT_EQ(read_architecture(c).sliding_window, 0);
  EXPECT_EQ(read_architecture(c).window_of(1), 0);
  c["layer_types"][0] = "linear_attention";
  EXPECT_EQ(status(c).code(), ErrorCode::kUnsupported);
  c["layer_types"] = Json::array({"full_attention"});
  EXPECT_EQ(status(c).code(), ErrorCode::kInvalidArgument);
  for (const std::int64_t layer : {0, 1})
    EXPECT_EQ(read_architecture(R"({"model_type":"mistral"})").window_of(layer), 4096);
  // Llama knows no window.
  EXPECT_EQ(read_architecture(R"({"model_type":"llama","sliding_window":16})").sliding_window, 0);
}

TEST(Architecture, RotaryKeysHaveTheirPrecedence) {
  Json c = {{"model_type", "llama"}, {"rope_theta", 5.0}};
  EXPECT_EQ(read_architecture(c).rotary.theta, 5);
  c["rope_parameters"] = {{"rope_theta", 6.0}, {"rope_type", "default"}};
  EXPECT_EQ(read_architecture(c).rotary.theta, 6);
  c["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  Architecture a =
      read_architecture(c);  // replaces rope_parameters; theta is the top level's again
  EXPECT_EQ(a.rotary.theta, 5);
  EXPECT_EQ(a.rotary.scaling, Scaling::kLinear);
  c["rope_scaling"] = Json::object();
  EXPECT_EQ(read_architecture(c).rotary.theta, 6);
  c["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 512}};
  a = read_architecture(c);
  EXPECT_EQ(a.rotary.factor, 4);  // 2048 / 512
  EXPECT_EQ(a.rotary.original_max_positions, 512);
  c["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(read_architecture(c).rotary.original_max_positions, 1024);
  c["rope_scaling"] = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  c.erase("original_max_position_embeddings");
  EXPECT_EQ(read_architecture(c).rotary.original_max_positions, 2048);
}

TEST(Architecture, RefusesRotaryKindsItDoesNotKnow) {
  const auto with = [](Json rope) { return status_with(kLlama, "rope_scaling", std::move(rope)); };
  EXPECT_EQ(with({{"rope_type", "ntk"}}).code(), ErrorCode::kUnsupported);
  for (const Json& list : {Json("1"), Json::array({1, 2}), Json(std::vector<double>(64, 0)),
                           Json(std::vector<std::string>(64, "1"))}) {
    const Status status = with({{"rope_type", "longrope"},
                                {"short_factor", std::vector<double>(64, 1)},
                                {"long_factor", list}});
    EXPECT_NE(status.message().find("long_factor is not a list of 64 numbers"), std::string::npos)
        << list << ": " << status.message();
  }
  EXPECT_FALSE(with({{"rope_type", "longrope"}}).ok());
  EXPECT_NE(with({{"rope_type", "linear"}}).message().find("rope_scaling: factor is missing"),
            std::string::npos);
  EXPECT_FALSE(with({{"rope_type", "linear"}, {"factor", 0}}).ok());
  EXPECT_FALSE(with({{"rope_type", "linear"}, {"factor", "4"}}).ok());
  EXPECT_FALSE(with({{"rope_type", 7}}).ok());
  EXPECT_FALSE(with("linear").ok());
  EXPECT_FALSE(with({{"rope_type", "llama3"}, {"factor", 8}}).ok());
  EXPECT_EQ(with({{"full_attention", {{"rope_type", "default"}}}}).code(), ErrorCode::kUnsupported);
  EXPECT_FALSE(with({{"rope_type", "yarn"}, {"factor", 2}, {"rope_theta", 1}}).ok());
  EXPECT_FALSE(with({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", -1}}).ok());
  // Whole heads turn: without scaling the factor is ignored, with it the model would not run.
  EXPECT_TRUE(status_with(kLlama, "partial_rotary_factor", 0.5).ok());
  EXPECT_EQ(with({{"rope_type", "linear"}, {"factor", 4}, {"partial_rotary_factor", 0.5}}).code(),
            ErrorCode::kUnsupported);
}

TEST(Architecture, ReadsIdsThatEndATextFromBothFiles) {
  EXPECT_EQ(read_architecture(R"({"model_type":"llama","eos_token_id":[128001,128008,128009]})")
                .eos_token_ids,
            (std::vector<std::int64_t>{128001, 128008, 128009}));
  const fs::path folder = fs::path(testing::TempDir()) / "neap_architecture_ids";
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type":"qwen2","eos_token_id":151643,"bos_token_id":151643})";
  EXPECT_EQ(Architecture::from_folder(folder)->eos_token_ids, std::vector<std::int64_t>{151643});
  std::ofstream(folder / "generation_config.json")
      << R"({"eos_token_id":[151645,151643],"pad_token_id":151643})";
  const Result<Architecture> a = Architecture::from_folder(folder);
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ(a->eos_token_ids, (std::vector<std::int64_t>{151645, 151643}));
  EXPECT_EQ(a->pad_token_id, 151643);
  EXPECT_EQ(a->bos_token_id, 151643);
  EXPECT_EQ(read_architecture(a->to_json()).eos_token_ids, a->eos_token_ids);
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id":"<end>"})";
  EXPECT_NE(Architecture::from_folder(folder).status().message().find("generation_config.json"),
            std::string::npos);
  std::ofstream(folder / "generation_config.json") << "{";
  EXPECT_FALSE(Architecture::from_folder(folder).ok());
  fs::remove_all(folder);
}

TEST(Architecture, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(status(Json{{"model_type", "mamba"}}).message().find("supported are"),
            std::string::npos);
  EXPECT_NE(status(Json::object()).message().find("model_type is missing"), std::string::npos);
  EXPECT_NE(status(Json::array()).message().find("not a JSON object"), std::string::npos);
  EXPECT_NE(status(Json{{"model_type", 3}}).message().find("not text"), std::string::npos);
  for (const Json& hidden : {Json(-1), Json(0), Json(18446744073709551615ULL), Json("wide"),
                             Json(4096.5), Json(1LL << 40), Json(std::string(1000, 'x'))}) {
    const Status s = status_with(kLlama, "hidden_size", hidden);
    EXPECT_EQ(s.code(), ErrorCode::kInvalidArgument) << hidden;
    EXPECT_LT(s.message().size(), 200U);
  }
  for (const char* key :
       {"vocab_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    EXPECT_FALSE(status_with(kLlama, key, 1LL << 62).ok()) << key;
    EXPECT_FALSE(status_with(kLlama, key, -3).ok()) << key;
  }
  EXPECT_FALSE(status_with(kLlama, "num_key_value_heads", 5).ok());
  EXPECT_FALSE(status_with(kLlama, "num_attention_heads", 7).ok());
  EXPECT_FALSE(status_with(kLlama, "head_dim", 127).ok());
  EXPECT_FALSE(status_with(kLlama, "rope_theta", -1).ok());
  EXPECT_FALSE(status_with(kLlama, "rope_theta", 1e30).ok());
  EXPECT_FALSE(status_with(kLlama, "rope_theta", 1e-30).ok());
  EXPECT_FALSE(status_with(kLlama, "rms_norm_eps", -1e-6).ok());
  EXPECT_FALSE(status_with(R"({"model_type":"gpt2"})", "n_head", 7).ok());
  EXPECT_EQ(status_with(R"({"model_type":"gpt2"})", "activation_function", "mish").code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(status_with(R"({"model_type":"opt"})", "enable_bias", false).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(status_with(kLlama, "quantization_config", {{"bits", 4}}).code(),
            ErrorCode::kUnsupported);
  // Wide heads: every size is in bounds, their product is not.
  Json wide = Json::parse(kLlama);
  wide["num_attention_heads"] = wide["head_dim"] = 1 << 20;
  EXPECT_NE(status(wide).message().find("too wide"), std::string::npos);
}

TEST(Architecture, WritesTheFileThatItRead) {
  Json c = Json::parse(kQwen2);
  c["initializer_range"] = 0.5;
  c["torch_dtype"] = "bfloat16";
  c["id2label"] = {{"0", "A"}, {"1", "B"}};
  c["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  const Architecture a = read_architecture(c);
  const Json language = a.to_json();
  EXPECT_EQ(language["architectures"][0], "Qwen2ForCausalLM");
  EXPECT_EQ(language["initializer_range"], 0.5);
  EXPECT_EQ(language["rope_scaling"], c["rope_scaling"]);
  EXPECT_FALSE(language.contains("torch_dtype"));
  EXPECT_FALSE(language.contains("id2label"));
  const Json scalar = a.to_json(Head::kScalar);
  EXPECT_EQ(scalar["architectures"][0], "Qwen2ForSequenceClassification");
  EXPECT_EQ(scalar["id2label"].size(), 1U);
  EXPECT_EQ(read_architecture(language).to_json(), language);
  EXPECT_EQ(read_architecture(scalar).to_json(Head::kScalar), scalar);
}

TEST(ArchitectureFiles, AreListedForUsers) {
  const Result<std::string> page =
      read_file(std::filesystem::path(NEAP_SOURCE_DIR) / "docs" / "models.md");
  ASSERT_TRUE(page.ok());
  const std::size_t at = page->find("`model_type`s: ");
  ASSERT_NE(at, std::string::npos);
  const std::string list = page->substr(at, page->find('.', at) - at);
  for (const ArchitectureFile* file : architecture_files())
    EXPECT_NE(list.find("`" + std::string(file->model_type) + "`"), std::string::npos)
        << file->model_type;
}

TEST(ArchitectureFiles, HaveNamesForWhatTheirModelsHave) {
  EXPECT_GE(architecture_files().size(), 5U);
  for (const ArchitectureFile* file : architecture_files()) {
    const Architecture a = read_architecture(Json{{"model_type", file->model_type}});
    EXPECT_EQ(find_architecture_file(file->model_type), file);
    for (const Head head : {Head::kLanguageModel, Head::kScalar}) {
      for (const FlatUnit& unit : flat_layout(a, head)) {
        for (const Parameter& p : unit.parameters) {
          // A module without a name leaves ".weight" behind its block's prefix.
          EXPECT_EQ(p.name.find(".."), std::string::npos) << file->model_type << " " << p.name;
          EXPECT_NE(p.name.front(), '.') << file->model_type << " " << p.name;
        }
      }
    }
  }
}

// ---- against Hugging Face's classes: tests/golden/architectures/make.py ----

class Golden : public testing::TestWithParam<fs::path> {
 protected:
  void SetUp() override {
    const Result<std::string> text = read_file(GetParam(), 16_MiB);
    ASSERT_TRUE(text.ok());
    golden = Json::parse(*text);
    architecture = read_architecture(golden["config"]);
  }
  /// The layout's names and shapes as the golden file has them.
  [[nodiscard]] Json tensors(Head head) const {
    std::map<std::string, Json> sorted;
    for (const FlatUnit& unit : flat_layout(architecture, head))
      for (const Parameter& p : unit.parameters)
        EXPECT_TRUE(sorted.emplace(p.name, p.shape).second) << p.name << " is there twice";
    Json j = Json::object();
    for (const auto& [name, shape] : sorted) j[name] = shape;
    return j;
  }
  Json golden;
  Architecture architecture;
};

TEST_P(Golden, TensorsAreThoseOfTheSavedModel) {
  EXPECT_EQ(tensors(Head::kLanguageModel), golden["language_model"]);
  // transformers has no scalar head for some.
  if (!golden["scalar"].is_null()) {
    EXPECT_EQ(tensors(Head::kScalar), golden["scalar"]);
  }
}

TEST_P(Golden, FrequenciesAreThoseOfTheModel) {
  EXPECT_EQ(golden["rotary"].empty(), architecture.rotary.dimensions == 0);
  for (const Json& row : golden["rotary"]) {
    const RotaryTable table = rotary_table(architecture.rotary, row["length"].get<std::int64_t>());
    ASSERT_EQ(table.frequencies.size(), row["frequencies"].size());
    for (std::size_t i = 0; i < table.frequencies.size(); ++i) {
      // One rounding of torch's power function.
      EXPECT_NEAR(table.frequencies[i] / row["frequencies"][i].get<double>(), 1, 1.2e-7) << i;
    }
    EXPECT_NEAR(table.attention_factor, row["attention_factor"].get<double>(), 1e-12);
  }
}

TEST_P(Golden, IsReadAgainAsWritten) {
  for (const Head head : {Head::kLanguageModel, Head::kScalar}) {
    const Architecture again = read_architecture(architecture.to_json(head));
    EXPECT_EQ(again.to_json(head), architecture.to_json(head));
    EXPECT_EQ(again.rotary.dimensions, architecture.rotary.dimensions);
    EXPECT_EQ(total_elements(flat_layout(again, head)),
              total_elements(flat_layout(architecture, head)));
  }
}

std::vector<fs::path> golden_files() {
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::directory_iterator(fs::path(NEAP_SOURCE_DIR) / "tests/golden/architectures"))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}
INSTANTIATE_TEST_SUITE_P(HuggingFace, Golden, testing::ValuesIn(golden_files()),
                         [](const auto& file) { return file.param.stem().string(); });

}  // namespace
}  // namespace neap::spec
