// BPE tokenizers in Hugging Face's tokenizer.json, or in the older vocab.json with merges.txt.
// Vocabularies are byte-level (GPT-2, Qwen, Llama-3 and similar) or have byte fallback (Llama-2,
// Mistral, Gemma and similar).
//
// Needs no torch. Any bytes can be encoded. For valid UTF-8 the ids are those of Hugging Face's
// tokenizers library.
//
// Threads   const calls from any thread.
//
// Failure   neap::Error naming the file and the field.
//
// Cost      encoding takes 10 to 25 MB/s per thread. Known pieces come from a cache of bounded
//           size.
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
  bool single_word = false;  ///< matches only where no word character is adjacent
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;
};

class Tokenizer {
 public:
  /// Reads tokenizer.json, else vocab.json and merges.txt. Reads the roles of special tokens from
  /// tokenizer_config.json.
  [[nodiscard]] static Tokenizer from_folder(const std::filesystem::path& folder);
  [[nodiscard]] static Tokenizer from_json(std::string_view text, std::string_view where);

  /// Ids of the text. Adds the post-processor's tokens (such as BOS) if requested. Special tokens
  /// written in the text become their ids.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            bool add_special_tokens = false) const;
  /// Ids of a text that a model continues. The post-processor's tokens at the beginning (BOS) come
  /// first, unless the text starts with them.
  [[nodiscard]] std::vector<TokenId> encode_prompt(std::string_view text) const;
  /// Text of the ids. Bytes that are not UTF-8 become U+FFFD in the final text only. Ids out of
  /// range are skipped.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const;

  /// The reason why the other tokenizer gives different ids; nothing if it gives the same.
  /// Vocabularies and merges are compared directly. Normalizer, splitting and BOS are compared by
  /// encoding a special text.
  [[nodiscard]] std::optional<std::string> difference(const Tokenizer& other) const;

  [[nodiscard]] std::int64_t vocab_size() const;  ///< largest id + 1, including added tokens
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  /// The token's spelling in the vocabulary ("Ġthe"); empty for an id without a token.
  [[nodiscard]] std::string token_of(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> bos() const;
  [[nodiscard]] std::optional<TokenId> eos() const;
  [[nodiscard]] std::optional<TokenId> pad() const;
  /// Sets roles by the tokens' texts, which must be in the vocabulary.
  void set_roles(const std::optional<std::string>& bos, const std::optional<std::string>& eos,
                 const std::optional<std::string>& pad);
  /// The unmodified chat template of tokenizer_config.json or chat_template.jinja; empty: none.
  [[nodiscard]] const std::string& chat_template() const;

 private:
  friend class StreamDecoder;
  struct State;
  std::shared_ptr<State> state_;
};

class DecodeStream;

/// Decodes a growing list of ids. Each push returns the text that later ids cannot change, always
/// whole UTF-8. All pushes and finish together equal decode. One thread.
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
