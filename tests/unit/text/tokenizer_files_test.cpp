// Tokenizers from their files and back.
#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/format.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "small_tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TokenizerFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              format("neap-tokenizer-{}-{}", ::getpid(),
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  fs::path folder_;
};

TEST_F(TokenizerFolder, RolesComeFromTheConfiguration) {
  Tokenizer t = tokenizer();
  write("tokenizer.json", tokenizer_json());
  write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "pad_token": "<pad>"})");
  const Tokenizer again = Tokenizer::from_folder(folder_);
  EXPECT_EQ(again.pad(), std::optional<TokenId>(1));
  EXPECT_EQ(again.eos(), std::optional<TokenId>(0));
  EXPECT_EQ(again.bos(), std::nullopt);
  EXPECT_EQ(again.encode("the tide<pad>"), t.encode("the tide<pad>"));
  EXPECT_THAT([&] { t.set_roles("<nope>", std::nullopt, std::nullopt); },
              ThrowsMessage<Error>(HasSubstr("<nope>")));
}

TEST_F(TokenizerFolder, VocabularyWithMergesIsReadLikeTokenizerJson) {
  const Tokenizer t = tokenizer();
  const json model = json::parse(tokenizer_json())["model"];
  std::string merges = "#version: 0.2\n";
  for (const auto& m : model["merges"])
    merges += m[0].get<std::string>() + " " + m[1].get<std::string>() + "\n";
  write("vocab.json", model["vocab"].dump());
  write("merges.txt", merges);
  write(
      "tokenizer_config.json",
      R"({"eos_token":{"content":"<|endoftext|>"},"bos_token":"<|endoftext|>","add_bos_token":true})");
  const Tokenizer old = Tokenizer::from_folder(folder_);
  const std::string text = "the lowest<|endoftext|> tide isn't 123";
  EXPECT_EQ(old.encode(text), t.encode(text));
  EXPECT_EQ(old.encode("the", true).front(), 0);
  EXPECT_EQ(old.eos(), std::optional<TokenId>(0));
}

TEST(TokenizerDifference, IsFoundInEveryPart) {
  const Tokenizer t = tokenizer();
  const json good = json::parse(tokenizer_json());
  const auto changed = [&](const json& change) {
    json other = good;
    other.merge_patch(change);
    return t.difference(Tokenizer::from_json(other.dump(), "t.json")).value_or("");
  };
  // Another spelling of the same.
  json merges = json::array();
  for (const auto& m : good["model"]["merges"])
    merges.push_back(m.is_array() ? json(m[0].get<std::string>() + " " + m[1].get<std::string>())
                                  : m);
  EXPECT_EQ(changed({{"model", {{"merges", merges}}}, {"truncation", nullptr}}), "");
  std::swap(merges[0], merges[1]);
  EXPECT_EQ(changed({{"model", {{"merges", merges}}}}), "their merges differ");
  EXPECT_THAT(changed({{"model", {{"vocab", {{"zzzz", t.vocab_size()}}}}}}),
              HasSubstr("is \"\" and \"zzzz\""));
  EXPECT_THAT(changed({{"normalizer", {{"type", "NFKC"}}}}), HasSubstr("normalize"));
  EXPECT_THAT(changed({{"pre_tokenizer", {{"add_prefix_space", true}}}}), HasSubstr("split"));
  json added = good["added_tokens"];
  added[0]["lstrip"] = true;
  EXPECT_THAT(changed({{"added_tokens", added}}), HasSubstr("split"));
}

TEST(TokenizerPrompt, StartsAsThePostProcessorSays) {
  json file = json::parse(tokenizer_json());
  EXPECT_EQ(tokenizer().encode_prompt("the tide"), tokenizer().encode("the tide"));
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|endoftext|>",
         {{"id", "<|endoftext|>"}, {"ids", {0}}, {"tokens", {"<|endoftext|>"}}}}}}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  std::vector<TokenId> expected = tokenizer().encode("the tide");
  expected.insert(expected.begin(), 0);
  EXPECT_EQ(t.encode_prompt("the tide"), expected);  // nothing behind it: the text goes on
  EXPECT_EQ(t.encode_prompt("<|endoftext|>the tide"), expected);
}

TEST_F(TokenizerFolder, ChatTemplatesAreKept) {
  write("tokenizer.json", tokenizer_json());
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})");
  EXPECT_EQ(Tokenizer::from_folder(folder_).chat_template(), "D");
  write("chat_template.jinja", "J");
  EXPECT_EQ(Tokenizer::from_folder(folder_).chat_template(), "J");
}

TEST_F(TokenizerFolder, LlamasConfigurationDecidesBeginAndEnd) {
  write("tokenizer.json", tokenizer_json());
  const auto ids = [&](const json& config) {
    write("tokenizer_config.json", config.dump());
    return Tokenizer::from_folder(folder_).encode("", true);
  };
  const json roles = {{"bos_token", "<pad>"}, {"eos_token", "<|endoftext|>"}};
  const auto with = [&](json more) {
    more.update(roles);
    return more;
  };
  EXPECT_EQ(ids(with({{"tokenizer_class", "LlamaTokenizerFast"},
                      {"add_bos_token", true},
                      {"add_eos_token", true}})),
            (std::vector<TokenId>{1, 0}));
  EXPECT_EQ(ids(with({{"tokenizer_class", "GemmaTokenizer"}, {"add_eos_token", false}})),
            (std::vector<TokenId>{1}));
  EXPECT_EQ(ids(with({{"tokenizer_class", "LlamaTokenizer"}})), std::vector<TokenId>{});
  EXPECT_EQ(ids(with({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_bos_token", true}})),
            std::vector<TokenId>{});
  EXPECT_THAT(
      [&] {
        (void)ids({{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}});
      },
      ThrowsMessage<Error>(HasSubstr("there is no bos_token")));
}

TEST_F(TokenizerFolder, FlagsOfTheConfigurationsAddedTokensCount) {
  write("tokenizer.json", tokenizer_json());
  json config = {{"added_tokens_decoder",
                  {{"1", {{"content", "<pad>"}, {"special", true}, {"rstrip", true}}},
                   {"400", {{"content", "<new>"}, {"special", false}}}}}};
  write("tokenizer_config.json", config.dump());
  const Tokenizer t = Tokenizer::from_folder(folder_);
  EXPECT_EQ(t.encode("<pad>   <new>"), (std::vector<TokenId>{1, 400}));
  EXPECT_EQ(t.decode(std::vector<TokenId>{1, 400}), "<new>");
  config["added_tokens_decoder"] = {{"one", {{"content", "<pad>"}}}};
  write("tokenizer_config.json", config.dump());
  EXPECT_THAT([&] { (void)Tokenizer::from_folder(folder_); },
              ThrowsMessage<Error>(HasSubstr("\"one\"")));
}

TEST(TokenizerFile, WrongFilesAreRefusedByFieldName) {
  const json good = json::parse(tokenizer_json());
  const auto refuses = [&](const json& change, const std::string& why) {
    json bad = good;
    bad.merge_patch(change);
    EXPECT_THAT([&] { (void)Tokenizer::from_json(bad.dump(), "t.json"); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr("t.json"), HasSubstr(why))))
        << change.dump();
  };
  refuses({{"model", {{"type", "Unigram"}}}}, "Unigram");
  refuses({{"model", {{"end_of_word_suffix", "</w>"}}}}, "end_of_word_suffix");
  refuses({{"model", {{"merges", {"a"}}}}}, "merge 0");
  refuses({{"model", {{"merges", {"t zzz"}}}}}, "\"zzz\", which is not in the vocabulary");
  refuses({{"model", {{"merges", json::array({json::array({"t", 5})})}}}}, "merge 0");
  refuses({{"model", {{"vocab", {{"x9", -1}}}}}}, "\"x9\"");
  refuses({{"model", {{"vocab", {{"x9", 4000000000u}}}}}}, "4000000000");
  refuses({{"model", {{"vocab", {{"x9", 60000000}}}}}}, "up to 60000000");
  refuses({{"model", {{"vocab", {{"x9", 3}}}}}}, "twice");
  refuses({{"model", 7}}, "no object \"model\"");
  refuses({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}, "UnicodeScripts");
  refuses({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", 3}}}}, "\"pretokenizers\"");
  refuses({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}}}, "one character");
  refuses({{"pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Else"}}}}, "Else");
  refuses({{"pre_tokenizer", {{"type", 5}}}}, "type");
  refuses({{"pre_tokenizer",
            {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}}},
          "does not compile");
  refuses({{"normalizer", {{"type", "Precompiled"}}}}, "Precompiled");
  refuses({{"normalizer", {{"type", "Replace"}, {"pattern", 3}}}}, "pattern");
  refuses({{"decoder", {{"type", "WordPiece"}}}}, "WordPiece");
  refuses({{"post_processor", {{"type", "Else"}}}}, "Else");
  refuses({{"post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}}},
          "the text 0 times");
  refuses({{"added_tokens", {{{"id", 5}, {"content", ""}}}}}, "no content");
  refuses({{"added_tokens", {{{"id", 5}, {"content", "x"}}}}}, "has the id 5 of");
  refuses({{"added_tokens", {{{"id", 50'000'000}, {"content", "x"}}}}}, "50000000");
  refuses({{"added_tokens", {{{"id", 18446744073709551615u}, {"content", "x"}}}}}, "has the id 18");
  refuses({{"added_tokens", {{{"id", 1000}, {"content", "t"}}}}}, "and the id 1000");
  EXPECT_THAT([] { (void)Tokenizer::from_json("{\"a\":", "t.json"); },
              ThrowsMessage<Error>(HasSubstr("t.json: not valid JSON")));
  EXPECT_THAT([] { (void)Tokenizer::from_json(std::string(1'000'000, '['), "t.json"); },
              ThrowsMessage<Error>(HasSubstr("64 levels")));
}

}  // namespace
}  // namespace neap::text
