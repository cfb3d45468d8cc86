// A byte-level tokenizer for tests: special tokens, the 256 bytes, and what merges make.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {

/// Its tokenizer.json. Ids are in this order: `specials`, the bytes, then for each of `words` the tokens of its first two bytes, of its
/// first three and so on to the whole word.
inline std::string byte_tokenizer_json(const std::vector<std::string>& specials,
                                       const std::vector<std::string>& words) {
  using nlohmann::json;
  json vocab = json::object(), added = json::array(), merges = json::array();
  for (const std::string& token : specials) {
    added.push_back({{"id", vocab.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[token] = vocab.size();
  }
  for (const std::string& character : byte_characters()) vocab[character] = vocab.size();
  for (const std::string_view word : words) {
    for (std::size_t n = 2; n <= word.size(); ++n) {
      const std::string token = token_of_bytes(word.substr(0, n));
      if (vocab.contains(token)) continue;
      merges.push_back(
          {token_of_bytes(word.substr(0, n - 1)), token_of_bytes(word.substr(n - 1, 1))});
      vocab[token] = vocab.size();
    }
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const json document = {{"added_tokens", added},
                         {"pre_tokenizer", byte_level},
                         {"decoder", byte_level},
                         {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return document.dump();
}
inline Tokenizer byte_tokenizer(const std::vector<std::string>& specials,
                                const std::vector<std::string>& words) {
  return Tokenizer::from_json(byte_tokenizer_json(specials, words), "the tests' tokenizer");
}

}  // namespace neap::text
