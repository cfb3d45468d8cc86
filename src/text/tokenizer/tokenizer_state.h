// Internal state of a Tokenizer, shared by reading and use.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/token_decoder.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tree.h"

namespace neap::text {

struct Tokenizer::State {
  State(std::string_view text, std::string_view where);

  StringMap<Bpe::Id> vocabulary;    // includes added tokens
  std::vector<std::string> tokens;  // by id
  std::vector<bool> special;        // by id
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  TokenDecoder decoder;
  AddedTokenFinder raw_finder;          // searches the original text
  AddedTokenFinder normalized_finder;   // searches the normalized text
  std::vector<TokenId> prefix, suffix;  // added by the post-processor
  std::optional<TokenId> bos, eos, pad;
  std::string chat_template;

  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  void read_config(const Tree& json, std::string_view where);

 private:
  void read_model(const Tree& model, std::string_view where);
  void read_vocabulary(const Tree& vocab, std::string_view where);
  void read_added(const Tree& list, std::string_view where);
  void add_token(const Tree& entry, const Tree& id, std::string_view where);
  void make_finders();
  void read_post_processor(const Tree& processor, std::string_view where);
  void read_template(const Tree& processor, std::string_view where);
  void read_begin_and_end(const Tree& json, std::string_view where);
};

}  // namespace neap::text
