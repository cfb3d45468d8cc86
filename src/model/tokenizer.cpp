#include "model/tokenizer.h"

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "model/tokenizer_state.h"

namespace neap::model {

void AddedTokenFinder::add(std::string pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  auto& list = by_first_byte_[static_cast<unsigned char>(pattern.front())];
  patterns_.push_back({std::move(pattern), token});
  const std::size_t index = patterns_.size() - 1;
  const auto at = std::find_if(list.begin(), list.end(), [&](std::size_t other) {
    return patterns_[other].text.size() < patterns_[index].text.size();
  });
  list.insert(at, index);
}

const AddedTokenFinder::Pattern* AddedTokenFinder::longest_at(std::string_view text) const {
  for (const std::size_t i : by_first_byte_[static_cast<unsigned char>(text.front())]) {
    if (text.starts_with(patterns_[i].text)) return &patterns_[i];
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts) const {
  std::size_t done = 0;
  std::size_t at = 0;
  while (!patterns_.empty() && at < text.size()) {
    const Pattern* found = longest_at(text.substr(at));
    if (found == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + found->text.size();
    at = end;
    const AddedToken& token = found->token;
    if (token.single_word &&
        (utf8::is_word(utf8::back(text.substr(0, begin))) ||
         (end < text.size() && utf8::is_word(utf8::front(text.substr(end)).value))))
      continue;
    if (begin < done) continue;  // swallowed by the one before, which strips to its right
    if (token.lstrip) begin = std::max(done, begin - utf8::trailing_space(text.substr(0, begin)));
    if (token.rstrip) end += utf8::leading_space(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
}

std::string Tokenizer::State::normalized(std::string_view text) const {
  std::string out(text);
  for (const utf8::Form form : forms) out = utf8::normalize(out, form);
  return out;
}

std::optional<TokenId> Tokenizer::State::id_of(std::string_view token) const {
  const auto it = vocabulary.find(token);
  return it == vocabulary.end() ? std::nullopt : std::optional<TokenId>(it->second);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const State& s = *state_;
  std::vector<TokenId> ids;
  if (add_special_tokens) ids = s.prefix;
  std::vector<AddedTokenFinder::Part> outer, inner;
  std::vector<std::string_view> pieces;
  std::string changed, storage;
  s.raw_finder.split(text, outer);
  for (const auto& part : outer) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    std::string_view plain = part.text;
    if (!s.forms.empty()) {
      changed = s.normalized(plain);
      plain = changed;
    }
    inner.clear();
    s.normalized_finder.split(plain, inner);
    for (const auto& inside : inner) {
      if (inside.id) {
        ids.push_back(*inside.id);
        continue;
      }
      pieces.clear();
      s.pre_tokenizer.split(inside.text, storage, pieces);
      s.bpe->encode(pieces, ids);
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
  // Spaces, digits, contractions, cases, line ends, scripts and composed characters: where the
  // splitting patterns and normalizers of the supported tokenizers differ.
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
const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return state_->added;
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

void Tokenizer::set_roles(std::optional<std::string> bos, std::optional<std::string> eos,
                          std::optional<std::string> pad) {
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

std::string StreamDecoder::push(TokenId id) {
  const Tokenizer::State& s = *tokenizer_.state_;
  if (id < 0 || id >= tokenizer_.vocab_size()) return {};
  const auto at = static_cast<std::size_t>(id);
  if (skip_special_tokens_ && s.special[at]) return {};
  tail_ += s.bytes[at];
  std::string text;
  tail_.erase(0, utf8::append_lossy(text, tail_, /*final=*/false));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  utf8::append_lossy(text, tail_, /*final=*/true);
  tail_.clear();
  return text;
}

}  // namespace neap::model
