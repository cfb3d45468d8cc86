#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "base/format.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "small_tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;
using ::testing::ThrowsMessage;

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer t = tokenizer();
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
  const Tokenizer t = tokenizer();
  const std::string text =
      "the \xe6\x97\xa5\xe6\x9c\xac tide \xf0\x9f\x98\x80 caf\xc3\xa9<|endoftext|>s \xff\xe6\x97";
  const auto ids = t.encode(text);
  for (const bool skip : {false, true}) {
    StreamDecoder stream(t, skip);
    std::string pieces;
    for (const TokenId id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_TRUE(is_utf8(piece));
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
  std::size_t rank = 0;
  for (const auto& m : model["merges"]) ranks[{m[0], m[1]}] = rank++;
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
  ids.reserve(symbols.size());
  for (const auto& s : symbols) ids.push_back(*t.id_of(s));
  return ids;
}

TEST(Tokenizer, MergesFollowTheirDefinition) {
  const Tokenizer t = tokenizer();
  const json model = json::parse(tokenizer_json())["model"];
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    std::string piece;
    for (std::size_t n = 1 + random() % 30; n > 0; --n) piece += "theidlowsanr"[random() % 12];
    EXPECT_EQ(t.encode(piece), by_definition(model, piece, t)) << piece;
  }
}

// A tokenizer over characters: `merges` in rank order make its vocabulary.
json characters(const std::string& alphabet,
                const std::vector<std::array<std::string, 2>>& merges) {
  json vocab = json::object();
  const auto add = [&](const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  };
  for (const char c : alphabet) add(std::string(1, c));
  for (const auto& [left, right] : merges) add(left + right);
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
          {"decoder", {{"type", "Fuse"}}}};
}

TEST(TokenizerProperty, CuttingLongTextsChangesNoId) {
  std::mt19937 random(3);
  int cut = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::vector<std::array<std::string, 2>> merges;
    for (std::size_t n = random() % 12; n > 0; --n) {
      merges.push_back({tokens[random() % tokens.size()], tokens[random() % tokens.size()]});
      if (merges.back()[0].size() + merges.back()[1].size() > 12)
        merges.pop_back();
      else
        tokens.push_back(merges.back()[0] + merges.back()[1]);
    }
    const json file = characters("abcd", merges);
    const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
    std::string text;
    for (std::size_t n = 100 + random() % 100; n > 0; --n) text += "abcd"[random() % 4];
    const auto ids = t.encode(text);
    EXPECT_EQ(ids, by_definition(file["model"], text, t)) << file.dump() << text;
    EXPECT_EQ(t.decode(ids), text);
    cut += ids.size() > 1;
  }
  EXPECT_GT(cut, 150);
}

TEST(Tokenizer, ByteTokensHoldAnyBytes) {
  json file = characters("ab ", {{"a", "b"}});
  for (int b = 0; b < 256; ++b) file["model"]["vocab"][format("<0x{:02X}>", b)] = 4 + b;
  file["model"]["byte_fallback"] = true;
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  const std::string wide = "\xe6\x97\xa5";
  EXPECT_EQ(t.encode("ab" + wide), (std::vector<TokenId>{3, 4 + 0xe6, 4 + 0x97, 4 + 0xa5}));
  EXPECT_EQ(t.decode(t.encode("ab" + wide + "b")), "ab" + wide + "b");
  // One wrong byte makes every byte of its run a replacement character.
  EXPECT_EQ(t.decode(t.encode("a" + wide + "\xff")),
            "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  StreamDecoder stream(t);
  EXPECT_EQ(stream.push(3), "ab");
  for (const TokenId byte : {4 + 0xe6, 4 + 0x97, 4 + 0xa5}) EXPECT_EQ(stream.push(byte), "");
  EXPECT_EQ(stream.push(0), wide + "a");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, UnknownCharactersBecomeTheUnkTokenOrNothing) {
  json file = characters("ab", {});
  const auto ids = [&] { return Tokenizer::from_json(file.dump(), "t.json").encode("axxby"); };
  EXPECT_EQ(ids(), (std::vector<TokenId>{0, 1}));
  file["model"]["unk_token"] = "b";
  EXPECT_EQ(ids(), (std::vector<TokenId>{0, 1, 1, 1, 1}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(ids(), (std::vector<TokenId>{0, 1, 1, 1}));
  file["model"]["unk_token"] = "<none>";
  EXPECT_THAT(ids, ThrowsMessage<Error>(HasSubstr("unk_token \"<none>\" is not in the vocab")));
}

TEST(Tokenizer, StripDropsAtBothEndsOfTheFusedText) {
  json file = characters("ab", {});
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", 2}}}}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_EQ(t.decode(t.encode("aabaaa")), "aba");
  EXPECT_EQ(t.decode(t.encode("a")), "");
  StreamDecoder stream(t);
  EXPECT_EQ(stream.push(1), "b");
  EXPECT_EQ(stream.push(0), "");  // could be the end
  EXPECT_EQ(stream.push(1), "ab");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, NormalizersCannotMakeTextsWithoutBound) {
  json file = characters("a", {});
  json stages = json::array();
  for (int i = 0; i < 40; ++i)
    stages.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(64, 'a')}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", stages}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_THAT([&] { (void)t.encode("a"); },
              ThrowsMessage<Error>(HasSubstr("needs memory over the limit")));
  file["decoder"] = {{"type", "Sequence"}, {"decoders", stages}};
  file.erase("normalizer");
  const Tokenizer decoding = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_THAT([&] { (void)decoding.decode(std::vector<TokenId>{0}); },
              ThrowsMessage<Error>(HasSubstr("needs memory over the limit")));
}

TEST(Tokenizer, PreTokenizersCannotMakePiecesWithoutBound) {
  json stages = json::array();
  for (int i = 0; i < 40; ++i) {
    stages.push_back(
        {{"type", "Metaspace"}, {"replacement", i % 2 == 0 ? "x" : "y"}, {"split", false}});
    stages.push_back({{"type", "FixedLength"}, {"length", 1}});
  }
  json file = characters("axy", {});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_THAT([&] { (void)t.encode("a"); }, ThrowsMessage<Error>(HasSubstr("The tokenizer ")));
}

TEST(Tokenizer, AddedTokensCannotBeSearchedForWithoutBound) {
  const std::string run(20'000, 'a');
  json file = characters("a", {});
  file["added_tokens"] = {{{"id", 1}, {"content", run + "b"}}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  EXPECT_THAT([&] { (void)t.encode(run); }, ThrowsMessage<Error>(HasSubstr("over the limit of ")));
  EXPECT_EQ(t.encode(run + "b").size(), 1U);
}

TEST(Tokenizer, PatternsThatBacktrackWithoutBoundGiveUp) {
  json file = characters("a", {});
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(a|aa)+\\d"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const Tokenizer t = Tokenizer::from_json(file.dump(), "t.json");
  const auto encode = [&] { (void)t.encode(std::string(200, 'a')); };
  EXPECT_THAT(encode, ThrowsMessage<Error>(HasSubstr("(a|aa)+\\d")));
  EXPECT_THAT(encode, Throws<Error>(Property(
                          &Error::status, Property(&Status::code, ErrorCode::kInvalidArgument))));
}

TEST(TokenizerPattern, WhatPcreCannotExpressIsRefused) {
  for (const char* pattern :
       {"[a&&b]", "[a[^b]]", "\\K", "a{2,3}+", "[\\P{L}]", "\\u12", "a\\", "\\Ga", "(*COMMIT)a"}) {
    json file = characters("a", {});
    file["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    EXPECT_THAT([&] { (void)Tokenizer::from_json(file.dump(), "t.json"); },
                ThrowsMessage<Error>(HasSubstr("not supported")))
        << pattern;
  }
}

TEST(Tokenizer, OneLongPieceDoesNotTakeQuadraticTime) {
  const Tokenizer t = tokenizer();
  for (const char c : {'e', ' ', '\n', '!', '\xff'}) {
    const std::string text(2'000'000, c);
    EXPECT_EQ(t.decode(t.encode(text)).size(), text.size() * (c == '\xff' ? 3 : 1));
  }
}

TEST(Tokenizer, ThreadsGiveTheSameIds) {
  const Tokenizer t = tokenizer();
  const std::string text = "the lowest tide of the month isn't the lowest water 123\n";
  const auto expected = t.encode(text);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) wrong += t.encode(text) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace neap::text
