// The tokens that end and fill a text, as transformers takes them from a model's folder.
//
// Pure      reads generation_config.json; keeps nothing.
// Failure   Error when nothing would end a text, or when an id is not in the vocabulary.
#pragma once

#include <filesystem>
#include <vector>

#include "spec/layout.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {

struct TextTokens {
  /// Each of them ends a generated text: eos_token_id of generation_config.json, else config.json's.
  std::vector<TokenId> ends;
  /// What a text for training ends with: the tokenizer's eos_token if it is one of `ends`, else the
  /// first of them.
  TokenId end = 0;
  /// Fills batches; masked everywhere. pad_token_id of config.json or generation_config.json, else
  /// the tokenizer's pad_token, else `end`.
  TokenId pad = 0;

  [[nodiscard]] bool is_end(TokenId id) const;
};

[[nodiscard]] TextTokens text_tokens(const std::filesystem::path& folder,
                                     const spec::Architecture& shape, const Tokenizer& tokenizer);

}  // namespace neap::text
