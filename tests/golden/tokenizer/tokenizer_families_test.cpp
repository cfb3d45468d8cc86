// Ids and texts of the families that checkpoints have against Hugging Face's tokenizers, made by
// make_family_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "base/format.h"
#include "nlohmann/json.hpp"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = [] {
    std::ifstream in(NEAP_SOURCE_DIR "/tests/golden/tokenizer/families.json");
    json read = json::parse(in);
    if (read.at("texts").size() < 2000) throw std::runtime_error("families.json lacks texts");
    return read;
  }();
  return all;
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const auto& [name, family] : goldens().at("families").items()) found.push_back(name);
  return found;
}

std::string checksum(const std::string& text) {
  std::uint32_t value = 0x811c9dc5;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return format("{:08x}", value);
}

class TokenizerFamily : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, TokenizerFamily, ::testing::ValuesIn(names()),
                         [](const auto& i) { return i.param; });

TEST_P(TokenizerFamily, IsHuggingFaces) {
  const json& family = goldens().at("families").at(GetParam());
  const Tokenizer t = Tokenizer::from_json(family["tokenizer"].dump(), GetParam());
  const auto sums = family["checksums"].get<std::string>();
  ASSERT_EQ(sums.size(), goldens()["texts"].size() * 8);
  for (const int round : {1, 2}) {  // the second from the cache
    for (std::size_t i = 0; i < goldens()["texts"].size(); ++i) {
      const auto text = goldens()["texts"][i].get<std::string>();
      const std::vector<TokenId> ids = t.encode(text, true);
      if (i < family["ids"].size()) {
        EXPECT_EQ(ids, family["ids"][i].get<std::vector<TokenId>>()) << "text " << i;
      }
      StreamDecoder stream(t, /*skip_special_tokens=*/false);
      std::string streamed;
      for (const TokenId id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      EXPECT_EQ(checksum(json(ids).dump() + t.decode(ids, true) + "\n" + streamed),
                sums.substr(i * 8, 8))
          << "text " << i << " round " << round << ": " << json(text).dump();
    }
  }
}

}  // namespace
}  // namespace neap::text
