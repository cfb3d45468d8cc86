// The files of a folder that a tokenizer is read from; each may be missing.
#pragma once

#include <array>

namespace neap::text {

inline constexpr std::array kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "chat_template.jinja"};

}  // namespace neap::text
