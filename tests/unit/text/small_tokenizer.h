// A tokenizer of bytes and a few merges.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "text/tokenizer/tokenizer.h"
#include "unit/text/byte_tokenizer.h"

namespace neap::text {

// "<|endoftext|>" is 0 and ends texts, "<pad>" is 1.
inline std::string tokenizer_json() {
  return byte_tokenizer_json(
      {"<|endoftext|>", "<pad>"},
      {"the", "low", "tide", "is", "ne", "he", " the", " tide", " low", " lowest", " water",
       " caf\xc3\xa9", "caf\xc3\xa9", "\xe6\x97\xa5\xe6\x9c\xac", " \xe6\x97\xa5\xe6\x9c\xac", "'s",
       "n't", "12", " 12"});
}
inline Tokenizer tokenizer() {
  Tokenizer t = Tokenizer::from_json(tokenizer_json(), "the tests' tokenizer");
  t.set_roles(std::nullopt, "<|endoftext|>", std::nullopt);
  return t;
}

}  // namespace neap::text
