#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/format.h"
#include "base/status.h"
#include "model/utf8.h"
#include "nlohmann/json.hpp"

namespace neap::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tokenizer trained(std::int64_t vocab_size = 320) {
  static const std::string text =
      "the tide is low and the water is low, the lowest tide of the month is the neap tide.\n"
      "It wasn't the lowest water; there's lower water when the moon isn't near: 12 34 123.\n"
      "caf\xc3\xa9 caf\xc3\xa9s \xe6\x97\xa5\xe6\x9c\xac \xe6\x97\xa5\xe6\x9c\xac\n";
  bool given = false;
  return Tokenizer::train({.vocab_size = vocab_size,
                           .min_frequency = 2,
                           .special_tokens = {"<|endoftext|>", "<pad>"},
                           .pattern = ""},
                          [&]() -> std::optional<std::string_view> {
                            if (given) return std::nullopt;
                            given = true;
                            return text;
                          });
}

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer t = trained();
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const auto ids = t.encode(bytes);
    std::string lossy;
    utf8::append_lossy(lossy, bytes, true);
    EXPECT_EQ(t.decode(ids), lossy);
  }
}

TEST(Tokenizer, StreamingEqualsDecodingWhole) {
  const Tokenizer t = trained();
  const std::string text =
      "the \xe6\x97\xa5\xe6\x9c\xac tide \xf0\x9f\x98\x80 caf\xc3\xa9<|endoftext|>s \xff\xe6\x97";
  const auto ids = t.encode(text);
  for (const bool skip : {false, true}) {
    StreamDecoder stream(t, skip);
    std::string pieces;
    for (const TokenId id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_TRUE(utf8::is_valid(piece));
      pieces += piece;
    }
    pieces += stream.finish();
    EXPECT_EQ(pieces, t.decode(ids, skip));
  }
  EXPECT_EQ(t.decode(std::vector<TokenId>{-1, 1 << 30}), "");
}

// The definition: again and again the merge of least rank, leftmost first.
std::vector<TokenId> by_definition(const json& model, std::string_view piece, const Tokenizer& t) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (const auto& m : model["merges"]) ranks[{m[0], m[1]}] = ranks.size();
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.push_back(std::string(1, c));
  while (true) {
    std::size_t best = SIZE_MAX, at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    }
    if (best == SIZE_MAX) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const auto& s : symbols) ids.push_back(*t.id_of(s));
  return ids;
}

TEST(Tokenizer, MergesFollowTheirDefinition) {
  const Tokenizer t = trained();
  const json model = json::parse(t.to_json())["model"];
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    std::string piece;
    for (std::size_t n = 1 + random() % 30; n > 0; --n) piece += "theidlowsanr"[random() % 12];
    EXPECT_EQ(t.encode(piece), by_definition(model, piece, t)) << piece;
  }
}

TEST(Tokenizer, OneLongPieceDoesNotTakeQuadraticTime) {
  const Tokenizer t = trained();
  for (const char c : {'e', ' ', '\n', '!', '\xff'}) {
    const std::string text(2'000'000, c);
    EXPECT_EQ(t.decode(t.encode(text)).size(), text.size() * (c == '\xff' ? 3 : 1));
  }
}

TEST(Tokenizer, ThreadsGiveTheSameIds) {
  const Tokenizer t = trained();
  const std::string text = "the lowest tide of the month isn't the lowest water 123\n";
  const auto expected = t.encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) wrong += t.encode(text) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, TrainingIsDeterministicAndKeepsItsBounds) {
  EXPECT_EQ(trained().to_json(), trained().to_json());
  EXPECT_EQ(trained(270).vocab_size(), 270);
  EXPECT_LT(trained(100'000).vocab_size(), 400) << "no pair is left that occurs twice";
  EXPECT_THAT([] { (void)trained(257); }, ThrowsMessage<Error>(HasSubstr("vocab_size 257")));
  EXPECT_EQ(trained().eos(), std::optional<TokenId>(0));
}

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

TEST_F(TokenizerFolder, SavedTokenizersComeBackWithTheirRoles) {
  Tokenizer t = trained();
  t.set_roles(std::nullopt, "<|endoftext|>", "<pad>");
  t.save(folder_);
  const Tokenizer again = Tokenizer::from_folder(folder_);
  EXPECT_EQ(again.pad(), std::optional<TokenId>(1));
  EXPECT_EQ(again.eos(), std::optional<TokenId>(0));
  EXPECT_EQ(again.bos(), std::nullopt);
  EXPECT_EQ(again.encode("the tide<pad>"), t.encode("the tide<pad>"));
  EXPECT_EQ(again.to_json(), t.to_json());
  EXPECT_THAT([&] { t.set_roles("<nope>", std::nullopt, std::nullopt); },
              ThrowsMessage<Error>(HasSubstr("<nope>")));
}

TEST_F(TokenizerFolder, VocabularyWithMergesIsReadLikeTokenizerJson) {
  const Tokenizer t = trained();
  const json model = json::parse(t.to_json())["model"];
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
  const Tokenizer t = trained();
  const json good = json::parse(t.to_json());
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
  json file = json::parse(trained().to_json());
  EXPECT_EQ(trained().encode_prompt("the tide"), trained().encode("the tide"));
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
  std::vector<TokenId> expected = trained().encode("the tide");
  expected.insert(expected.begin(), 0);
  EXPECT_EQ(t.encode_prompt("the tide"), expected);  // nothing behind it: the text goes on
  EXPECT_EQ(t.encode_prompt("<|endoftext|>the tide"), expected);
}

TEST_F(TokenizerFolder, ChatTemplatesAreKept) {
  trained().save(folder_);
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})");
  EXPECT_EQ(Tokenizer::from_folder(folder_).chat_template(), "D");
  write("chat_template.jinja", "J");
  EXPECT_EQ(Tokenizer::from_folder(folder_).chat_template(), "J");
}

TEST(TokenizerFile, WrongFilesAreRefusedByFieldName) {
  const json good = json::parse(trained().to_json());
  const auto refuses = [&](const json& change, const std::string& why) {
    json bad = good;
    bad.merge_patch(change);
    EXPECT_THAT([&] { (void)Tokenizer::from_json(bad.dump(), "t.json"); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr("t.json"), HasSubstr(why))))
        << change.dump();
  };
  refuses({{"model", {{"type", "Unigram"}}}}, "Unigram");
  refuses({{"model", {{"byte_fallback", true}}}}, "byte_fallback");
  refuses({{"model", {{"merges", {"a"}}}}}, "merge 0");
  refuses({{"model", {{"merges", {"t zzz"}}}}}, "\"zzz\", which is not in the vocabulary");
  refuses({{"model", {{"merges", json::array({json::array({"t", 5})})}}}}, "merge 0");
  refuses({{"model", {{"vocab", {{"x9", -1}}}}}}, "\"x9\"");
  refuses({{"model", {{"vocab", {{"x9", 4000000000u}}}}}}, "4000000000");
  refuses({{"model", {{"vocab", {{"x9", 60000000}}}}}}, "up to 60000000");
  refuses({{"model", {{"vocab", {{"x9", 3}}}}}}, "twice");
  refuses({{"model", 7}}, "no object \"model\"");
  refuses({{"pre_tokenizer", {{"type", "Whitespace"}}}}, "Whitespace");
  refuses({{"pre_tokenizer", {{"type", 5}}}}, "type");
  refuses({{"pre_tokenizer",
            {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}}},
          "does not compile");
  refuses({{"normalizer", {{"type", "Lowercase"}}}}, "Lowercase");
  refuses({{"decoder", {{"type", "WordPiece"}}}}, "WordPiece");
  refuses({{"post_processor", {{"type", "Else"}}}}, "Else");
  refuses({{"added_tokens", {{{"id", 5}, {"content", ""}}}}}, "no content");
  refuses({{"added_tokens", {{{"id", 5}, {"content", "x"}}}}}, "has the id 5 of");
  refuses({{"added_tokens", {{{"id", 50'000'000}, {"content", "x"}}}}}, "50000000");
  EXPECT_THAT([] { (void)Tokenizer::from_json("{\"a\":", "t.json"); },
              ThrowsMessage<Error>(HasSubstr("t.json: not valid JSON")));
  EXPECT_THAT([] { (void)Tokenizer::from_json(std::string(1'000'000, '['), "t.json"); },
              ThrowsMessage<Error>(HasSubstr("64 levels")));
}

}  // namespace
}  // namespace neap::model
