// Ids, texts and trained merges against Hugging Face's tokenizers, made by make_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "nlohmann/json.hpp"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = [] {
    std::ifstream in(NEAP_SOURCE_DIR "/tests/golden/tokenizer/goldens.json");
    json read = json::parse(in);
    if (read.at("texts").size() < 40) throw std::runtime_error("goldens.json lacks texts");
    return read;
  }();
  return all;
}

class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  const json& entry() const { return goldens()["tokenizers"][GetParam()]; }
  Tokenizer tokenizer() const {
    return Tokenizer::from_json(entry()["tokenizer"].dump(), GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         ::testing::Values("gpt2", "opt", "qwen2", "llama3"),
                         [](const auto& i) { return i.param; });

TEST_P(TokenizerGolden, IdsAreHuggingFaces) {
  const Tokenizer t = tokenizer();
  for (const int round : {1, 2}) {  // the second from the cache
    for (std::size_t i = 0; i < goldens()["texts"].size(); ++i) {
      const auto text = goldens()["texts"][i].get<std::string>();
      EXPECT_EQ(t.encode(text, true), entry()["ids"][i].get<std::vector<TokenId>>())
          << "text " << i << " round " << round << ": " << goldens()["texts"][i].dump();
    }
  }
}

TEST_P(TokenizerGolden, TextsAreHuggingFaces) {
  const Tokenizer t = tokenizer();
  for (std::size_t i = 0; i < goldens()["texts"].size(); ++i) {
    const auto text = goldens()["texts"][i].get<std::string>();
    const auto ids = entry()["ids"][i].get<std::vector<TokenId>>();
    const json changed = entry()["decoded"].value(std::to_string(i), json::object());
    EXPECT_EQ(t.decode(ids, false), changed.value("keep", text)) << "text " << i;
    EXPECT_EQ(t.decode(ids, true), changed.value("skip", text)) << "text " << i;
  }
}

TEST_P(TokenizerGolden, CutCharactersAreHuggingFaces) {
  const Tokenizer t = tokenizer();
  const auto ids = t.encode("日本😀é", true);
  const auto& prefixes = entry()["prefixes"];
  ASSERT_EQ(prefixes.size(), ids.size() + 1);
  for (std::size_t n = 0; n < prefixes.size(); ++n)
    EXPECT_EQ(t.decode({ids.data(), n}), prefixes[n].get<std::string>()) << n;
}

}  // namespace
}  // namespace neap::text
