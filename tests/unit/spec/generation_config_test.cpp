#include "spec/model/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace neap::spec {
namespace {

Result<GenerationConfig> read(const std::string& text) {
  return GenerationConfig::from_json(parse_json(text, "g.json").value(), "g.json");
}

std::string refusal_of(const std::string& text) {
  const Result<GenerationConfig> out = read(text);
  if (out.ok()) return "ok";
  EXPECT_EQ(out.status().code(), ErrorCode::kInvalidArgument) << text;
  return std::string(out.status().message());
}

// As GenerationConfig() of transformers documents them.
TEST(GenerationConfig, MissingKeysHaveTheDefaultsOfTransformers) {
  for (const char* text :
       {"{}", R"({"temperature":null,"top_k":null,"min_p":null,"max_new_tokens":null})"}) {
    const GenerationConfig config = read(text).value();
    EXPECT_FALSE(config.do_sample);
    EXPECT_EQ(config.temperature, 1);
    EXPECT_EQ(config.top_k, 50);
    EXPECT_EQ(config.top_p, 1);
    EXPECT_EQ(config.min_p, 0);
    EXPECT_EQ(config.repetition_penalty, 1);
    EXPECT_FALSE(config.max_new_tokens || config.max_length);
    EXPECT_TRUE(config.stop_strings.empty() && config.given.empty());
  }
}

TEST(GenerationConfig, ReadsWhatTheFileHas) {
  const GenerationConfig config =
      read(R"({"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.8,"min_p":0.05,
               "repetition_penalty":1.05,"max_new_tokens":2048,"max_length":4096,
               "stop_strings":["END"],"eos_token_id":[1,2]})")
          .value();
  EXPECT_TRUE(config.do_sample);
  EXPECT_EQ(config.temperature, 0.7);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.8);
  EXPECT_EQ(config.min_p, 0.05);
  EXPECT_EQ(config.repetition_penalty, 1.05);
  EXPECT_EQ(config.max_new_tokens, 2048);
  EXPECT_EQ(config.max_length, 4096);
  EXPECT_EQ(config.stop_strings, std::vector<std::string>{"END"});
  EXPECT_TRUE(config.given.contains("top_k"));
  EXPECT_TRUE(config.unsupported.empty());
  EXPECT_EQ(read(R"({"top_k":-1,"stop_strings":"a"})").value().top_k, 0);
}

TEST(GenerationConfig, AnErrorNamesTheFileAndTheKey) {
  EXPECT_EQ(refusal_of(R"({"do_sample":"yes"})"),
            R"(g.json: do_sample is "yes", not true or false)");
  EXPECT_EQ(refusal_of(R"({"do_sample":true,"temperature":0})"),
            "g.json: temperature is 0; with do_sample it must be above 0");
  EXPECT_EQ(refusal_of(R"({"temperature":0})"), "ok") << "greedy decoding does not read it";
  EXPECT_EQ(refusal_of(R"({"temperature":-1})"),
            "g.json: temperature is -1; with do_sample it must be above 0");
  EXPECT_EQ(refusal_of(R"({"temperature":"0.7"})"),
            R"(g.json: temperature is "0.7", not a number)");
  EXPECT_EQ(refusal_of(R"({"top_p":1.5})"), "g.json: top_p is 1.5; it can be 0 to 1");
  EXPECT_EQ(refusal_of(R"({"min_p":-0.1})"), "g.json: min_p is -0.1; it can be 0 to 1");
  EXPECT_EQ(refusal_of(R"({"top_k":2.5})"), "g.json: top_k is 2.5, not an integer");
  EXPECT_EQ(refusal_of(R"({"repetition_penalty":0})"),
            "g.json: repetition_penalty is 0; it must be greater than 0");
  EXPECT_NE(refusal_of(R"({"max_new_tokens":0})").find("g.json: max_new_tokens is 0"),
            std::string::npos);
  EXPECT_EQ(refusal_of(R"({"stop_strings":["a",3]})"),
            "g.json: stop_strings has 3, which is not text");
  EXPECT_EQ(refusal_of("[]"), "g.json: not a JSON object");
}

TEST(GenerationConfig, NamesWhatIsNotSupportedWhereItHasAnEffect) {
  EXPECT_TRUE(read(R"({"num_beams":1,"typical_p":1.0,"suppress_tokens":[],"bad_words_ids":null})")
                  .value()
                  .unsupported.empty());
  EXPECT_EQ(read(R"({"num_beams":4,"no_repeat_ngram_size":3})").value().unsupported,
            (std::vector<std::string>{"num_beams", "no_repeat_ngram_size"}));
}

TEST(GenerationConfig, AFolderWithoutTheFileHasTheDefaults) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "neap_generation_config";
  fs::create_directories(folder);
  EXPECT_TRUE(GenerationConfig::from_folder(folder).value().given.empty());
  std::ofstream(folder / kGenerationConfig) << R"({"top_p":2})";
  const Result<GenerationConfig> wrong = GenerationConfig::from_folder(folder);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find((folder / kGenerationConfig).string() + ": top_p"),
            std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace neap::spec
