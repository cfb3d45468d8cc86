// The byte-level BPE model: bytes of a piece to ids by ranked merges.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace neap::model {

/// Byte <-> character of the vocabulary's alphabet (printable bytes stand for themselves).
[[nodiscard]] const std::array<std::string, 256>& byte_characters();
/// Bytes that a vocabulary token stands for. A token with a character outside the alphabet stands
/// for its own UTF-8.
[[nodiscard]] std::string bytes_of_token(std::string_view token);
/// The alphabet's spelling of bytes.
[[nodiscard]] std::string token_of_bytes(std::string_view bytes);

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

class Bpe {
 public:
  using Id = std::int32_t;

  /// `vocabulary`: token in the alphabet's spelling -> id; `merges` in rank order. Throws, naming
  /// `where` and the merge, when a merge's parts or product are not in the vocabulary.
  Bpe(const StringMap<Id>& vocabulary,
      const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
      std::string_view where);

  /// Appends the ids of each piece. Threads: any; one at a time uses the cache.
  void encode(const std::vector<std::string_view>& pieces, std::vector<std::int64_t>& ids) const;

  /// Whether both have the same merges in the same order, given the same vocabulary.
  [[nodiscard]] bool same_merges(const Bpe& other) const {
    return keys_ == other.keys_ && values_ == other.values_ &&
           whole_.empty() == other.whole_.empty();
  }

 private:
  struct Merge {
    std::int32_t rank = -1;
    Id id = -1;
    bool operator==(const Merge&) const = default;
  };
  [[nodiscard]] Merge find(Id left, Id right) const;
  void encode_piece(std::string_view piece, std::vector<Id>& out) const;

  std::array<Id, 256> byte_id_{};
  // Open addressing over (left, right): the hot lookup of the program.
  std::vector<std::uint64_t> keys_;
  std::vector<Merge> values_;
  std::uint64_t mask_ = 0;
  StringMap<Id> whole_;  // by bytes; only with ignore_merges

  mutable std::mutex cache_mutex_;
  mutable StringMap<std::vector<Id>> cache_;
};

}  // namespace neap::model
