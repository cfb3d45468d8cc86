// Finds added tokens in a text. The leftmost match wins, then the longest, as in Hugging Face's
// automaton.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/budget.h"
#include "text/tokenizer/tokenizer.h"

namespace neap::text {

/// Threads   const calls from any thread.
///
/// Cost      a table lookup for a byte that begins no token, else a step per byte that a token
///           shares with the text.
class AddedTokenFinder {
 public:
  /// Adds a token that matches `pattern`. A later token with the same pattern replaces it.
  void add(std::string_view pattern, const AddedToken& token);
  struct Part {
    std::string_view text;
    std::optional<TokenId> id;  ///< set for an added token; absent for other text
  };
  void split(std::string_view text, std::vector<Part>& parts, Budget& budget) const;
  [[nodiscard]] bool empty() const { return tokens_.empty(); }

 private:
  using Node = std::uint32_t;
  struct Match {
    const AddedToken* token = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Match longest_at(std::string_view text, Budget& budget) const;

  std::array<Node, 256> first_{};                  // 0: no token begins with this byte
  std::unordered_map<std::uint64_t, Node> edges_;  // (node, byte) -> node
  std::vector<std::int32_t> token_at_{-1};         // by node: the token ending there, or -1
  std::vector<AddedToken> tokens_;
};

}  // namespace neap::text
