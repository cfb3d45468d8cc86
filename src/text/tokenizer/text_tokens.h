// Tokens that end a text and pad a batch, read from a model's folder as transformers does.
//
// Pure      reads generation_config.json; keeps nothing.
//
// Failure   Error if no token can end a text, or if the vocabulary lacks an id.
#pragma once

#include <filesystem>
#include <vector>

#include "spec/model/layout.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {

struct TextTokens {
  /// Each of these ends a generated text. From eos_token_id of generation_config.json, else of
  /// config.json.
  std::vector<TokenId> ends;
  /// Ends a training text: the tokenizer's eos_token if it is one of `ends`, else the first of
  /// `ends`.
  TokenId end = 0;
  /// Pads batches; always masked. From pad_token_id of config.json or generation_config.json, else
  /// the tokenizer's pad_token, else `end`.
  TokenId pad = 0;

  [[nodiscard]] bool is_end(TokenId id) const;
};

[[nodiscard]] TextTokens text_tokens(const std::filesystem::path& folder,
                                     const spec::Architecture& shape, const Tokenizer& tokenizer);

}  // namespace neap::text
