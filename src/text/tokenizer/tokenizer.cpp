#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "text/tokenizer/text_budget.h"
#include "text/tokenizer/tokenizer_state.h"

namespace neap::text {

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const State& s = *state_;
  std::vector<TokenId> ids;
  if (add_special_tokens) ids = s.prefix;
  std::vector<AddedTokenFinder::Part> outer, inner;
  Pieces pieces;
  std::string changed;
  Budget budget = text_budget(text.size());
  s.raw_finder.split(text, outer, budget);
  for (const auto& part : outer) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    std::string_view plain = part.text;
    if (!s.normalizer.empty()) {
      changed = s.normalizer.apply(plain, budget);
      plain = changed;
    }
    inner.clear();
    s.normalized_finder.split(plain, inner, budget);
    for (const auto& inside : inner) {
      if (inside.id) {
        ids.push_back(*inside.id);
        continue;
      }
      const bool first = part.text.data() == text.data() && inside.text.data() == plain.data();
      pieces.clear();
      s.pre_tokenizer.split(inside.text, first, pieces, budget);
      s.bpe->encode(pieces.list, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), s.suffix.begin(), s.suffix.end());
  return ids;
}

std::vector<TokenId> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<TokenId> ids = encode(text);
  const std::vector<TokenId>& prefix = state_->prefix;
  if (ids.size() < prefix.size() || !std::equal(prefix.begin(), prefix.end(), ids.begin()))
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
  return ids;
}

std::optional<std::string> Tokenizer::difference(const Tokenizer& other) const {
  // Text that shows the differences between splitting patterns and normalizers of the supported
  // tokenizers: spaces, digits, contractions, cases, line ends, scripts and composed characters.
  static constexpr std::string_view kProbe =
      "It's  1234567 o'clock; I'LL  pay $9.99!\n\n\ttab\r\nd\xC3\xA9j\xC3\xA0 vu e\xCC\x81 "
      "\xEF\xAC\x81 \xE6\xBD\xAE\xE6\xB1\x90 \xF0\x9F\x8C\x8A x_y=f(a)[0]//...   ";
  const std::size_t size = std::max(state_->tokens.size(), other.state_->tokens.size());
  for (std::size_t id = 0; id < size; ++id) {
    const auto token = static_cast<TokenId>(id);
    if (token_of(token) != other.token_of(token))
      return format("id {} is \"{}\" and \"{}\"", id, token_of(token), other.token_of(token));
  }
  if (!state_->bpe->same_merges(*other.state_->bpe)) return "their merges differ";
  std::string text(kProbe);
  for (const State* state : {state_.get(), other.state_.get()}) {
    for (const AddedToken& token : state->added) text += token.content + " a" + token.content;
  }
  if (encode(text, true) != other.encode(text, true)) {
    return "they split or normalize text differently, or put other tokens around it";
  }
  return std::nullopt;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  StreamDecoder decoder(*this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(state_->tokens.size());
}
std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  return state_->id_of(token);
}
std::string Tokenizer::token_of(TokenId id) const {
  return id >= 0 && id < vocab_size() ? state_->tokens[static_cast<std::size_t>(id)] : "";
}
std::optional<TokenId> Tokenizer::bos() const {
  return state_->bos;
}
std::optional<TokenId> Tokenizer::eos() const {
  return state_->eos;
}
std::optional<TokenId> Tokenizer::pad() const {
  return state_->pad;
}
const std::string& Tokenizer::chat_template() const {
  return state_->chat_template;
}

void Tokenizer::set_roles(const std::optional<std::string>& bos,
                          const std::optional<std::string>& eos,
                          const std::optional<std::string>& pad) {
  const auto id = [&](const std::optional<std::string>& token) -> std::optional<TokenId> {
    if (!token) return std::nullopt;
    const auto found = state_->id_of(*token);
    if (!found)
      throw Error(ErrorCode::kInvalidArgument,
                  format("The vocabulary has no token \"{}\"", *token));
    return found;
  };
  state_->bos = id(bos);
  state_->eos = id(eos);
  state_->pad = id(pad);
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(tokenizer.state_->decoder.stream())) {}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(TokenId id) {
  const Tokenizer::State& s = *tokenizer_.state_;
  if (id < 0 || id >= tokenizer_.vocab_size()) return {};
  const auto at = static_cast<std::size_t>(id);
  if (s.tokens[at].empty() || (skip_special_tokens_ && s.special[at])) return {};
  return stream_->push(s.tokens[at]);
}

std::string StreamDecoder::finish() {
  return stream_->finish();
}

}  // namespace neap::text
