// The tokenizer files of a folder; each may be missing.
#pragma once

#include <array>

namespace neap::text {

inline constexpr std::array kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "chat_template.jinja"};

}  // namespace neap::text
