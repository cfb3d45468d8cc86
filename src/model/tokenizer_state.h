// Inside of a Tokenizer; shared by reading, training and use.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace neap::model {

/// Finds added tokens in a text: leftmost, then longest, as Hugging Face's tries do.
class AddedTokenFinder {
 public:
  void add(std::string pattern, const AddedToken& token);
  struct Part {
    std::string_view text;
    std::optional<TokenId> id;  ///< set: an added token; else text between
  };
  void split(std::string_view text, std::vector<Part>& parts) const;
  [[nodiscard]] bool empty() const { return patterns_.empty(); }

 private:
  struct Pattern {
    std::string text;
    AddedToken token;
  };
  [[nodiscard]] const Pattern* longest_at(std::string_view text) const;
  std::vector<Pattern> patterns_;
  std::array<std::vector<std::size_t>, 256> by_first_byte_;  // longest first
};

struct Tokenizer::State {
  State(std::string_view text, std::string_view where);

  std::string document;             // tokenizer.json as it is
  Tree config = Tree::object();     // tokenizer_config.json as it is
  StringMap<Bpe::Id> vocabulary;    // with added tokens
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> bytes;   // by id: what it decodes to
  std::vector<bool> special;        // by id
  std::vector<AddedToken> added;
  std::vector<utf8::Form> forms;  // normalizers in order
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  AddedTokenFinder raw_finder;          // on the text as given
  AddedTokenFinder normalized_finder;   // on normalized text
  std::vector<TokenId> prefix, suffix;  // of the post-processor
  std::optional<TokenId> bos, eos, pad;
  std::string chat_template;

  [[nodiscard]] std::string normalized(std::string_view text) const;
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  void read_config(Tree json, std::string_view where);

 private:
  void read_model(const Tree& model, std::string_view where);
  void read_normalizer(const Tree& normalizer, std::string_view where);
  void read_added(const Tree& list, std::string_view where);
  void read_post_processor(const Tree& processor, std::string_view where);
  void check_decoder(const Tree& decoder, std::string_view where);
};

}  // namespace neap::model
