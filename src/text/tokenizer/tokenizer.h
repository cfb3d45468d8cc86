// BPE tokenizers: Hugging Face's tokenizer.json, byte-level (GPT-2, Qwen, Llama-3 and kin) or with
// byte fallback (Llama-2, Mistral, Gemma and kin), and the older vocab.json with merges.txt.
//
// Needs no torch. Any bytes can be encoded; ids are those of Hugging Face's tokenizers library for
// valid UTF-8.
//
// Threads   const calls from any thread.
// Failure   neap::Error naming the file and the field.
// Cost      encoding some 10 to 25 MB/s a thread; pieces seen before come from a cache of bounded size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace neap::text {

using TokenId = std::int64_t;

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;
  bool single_word = false;  ///< only where no word character is adjacent
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;
};

class Tokenizer {
 public:
  /// tokenizer.json, else vocab.json and merges.txt; with tokenizer_config.json for the roles of
  /// special tokens.
  [[nodiscard]] static Tokenizer from_folder(const std::filesystem::path& folder);
  [[nodiscard]] static Tokenizer from_json(std::string_view text, std::string_view where);

  /// Ids of the text; the post-processor's tokens (BOS and the like) too if asked. Special tokens
  /// written in the text become their ids.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            bool add_special_tokens = false) const;
  /// Ids of a text that a model continues: encode, after the tokens that the post-processor puts
  /// before every text (BOS), unless the text starts with them.
  [[nodiscard]] std::vector<TokenId> encode_prompt(std::string_view text) const;
  /// Text of the ids. Bytes that are not UTF-8 become U+FFFD, at the very end only. Ids out of
  /// range are left out.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const;

  /// Why the other tokenizer gives other ids; nothing when it gives the same. Vocabulary and merges
  /// are compared whole, the rest (normalizer, splitting, BOS) by encoding a text made for it.
  [[nodiscard]] std::optional<std::string> difference(const Tokenizer& other) const;

  [[nodiscard]] std::int64_t vocab_size() const;  ///< largest id + 1, added tokens included
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  /// As in the vocabulary ("Ġthe"); empty for an id without a token.
  [[nodiscard]] std::string token_of(TokenId id) const;
  [[nodiscard]] const std::vector<AddedToken>& added_tokens() const;
  [[nodiscard]] std::optional<TokenId> bos() const;
  [[nodiscard]] std::optional<TokenId> eos() const;
  [[nodiscard]] std::optional<TokenId> pad() const;
  /// By the token's text, which must be in the vocabulary.
  void set_roles(std::optional<std::string> bos, std::optional<std::string> eos,
                 std::optional<std::string> pad);
  /// The chat template of tokenizer_config.json or chat_template.jinja, as it is; empty: none.
  [[nodiscard]] const std::string& chat_template() const;

  /// The text of tokenizer.json.
  [[nodiscard]] const std::string& to_json() const;
  /// tokenizer.json and tokenizer_config.json, each replaced atomically.
  void save(const std::filesystem::path& folder) const;

 private:
  friend class StreamDecoder;
  struct State;
  std::shared_ptr<State> state_;
};

class DecodeStream;

/// Text of a growing list of ids: each push returns what has become certain, always whole UTF-8. All
/// pushes and finish together equal decode. One thread.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  ~StreamDecoder();
  [[nodiscard]] std::string push(TokenId id);
  [[nodiscard]] std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace neap::text
