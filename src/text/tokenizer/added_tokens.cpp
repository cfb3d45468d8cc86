#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {
std::uint64_t edge(std::uint32_t node, char byte) {
  return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}
}  // namespace

void AddedTokenFinder::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  const auto fresh = [&] {
    token_at_.push_back(-1);
    return static_cast<Node>(token_at_.size() - 1);
  };
  Node& first = first_[static_cast<unsigned char>(pattern.front())];
  if (first == 0) first = fresh();
  Node node = first;
  for (const char byte : pattern.substr(1)) {
    const auto [it, added] = edges_.try_emplace(edge(node, byte), 0);
    if (added) it->second = fresh();
    node = it->second;
  }
  token_at_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, Budget& budget) const {
  Match match;
  Node node = first_[static_cast<unsigned char>(text.front())];
  for (std::size_t i = 1; node != 0; ++i) {
    if (token_at_[node] >= 0) match = {&tokens_[static_cast<std::size_t>(token_at_[node])], i};
    if (i == text.size()) break;
    budget.spend(1);
    const auto it = edges_.find(edge(node, text[i]));
    node = it == edges_.end() ? 0 : it->second;
  }
  return match;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts,
                             Budget& budget) const {
  std::size_t done = 0;
  for (std::size_t at = 0; !tokens_.empty() && at < text.size();) {
    const Match found = first_[static_cast<unsigned char>(text[at])] == 0
                            ? Match{}
                            : longest_at(text.substr(at), budget);
    if (found.token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + found.bytes;
    at = end;
    const AddedToken& token = *found.token;
    if (token.single_word &&
        (utf8::is_word(utf8::back(text.substr(0, begin))) ||
         (end < text.size() && utf8::is_word(utf8::front(text.substr(end)).value))))
      continue;
    if (token.lstrip) begin = std::max(done, begin - utf8::trailing_space(text.substr(0, begin)));
    if (token.rstrip) end += utf8::leading_space(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done), std::nullopt});
    // A token inside white space that the previous token took is still found, as in Hugging Face's
    // library. The text after it then appears twice.
    parts.push_back({text.substr(begin, std::max(begin, end) - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
}

}  // namespace neap::text
