// The BPE model: converts a piece of text to ids by ranked merges.
//
// A symbol is a byte (byte-level vocabularies) or a character. For valid UTF-8 the ids are those of
// Hugging Face's tokenizers library. Bytes that are not UTF-8 become byte tokens if the vocabulary
// has them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/pair_table.h"

namespace neap::text {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

struct BpeOptions {
  bool byte_level = true;      ///< symbols are bytes, spelled in the byte alphabet; else characters
  bool ignore_merges = false;  ///< a piece that is a token is not merged
  bool byte_fallback = false;  ///< a character without a token becomes its bytes "<0xNN>"
  bool fuse_unk = false;       ///< consecutive unknown characters become one token
  std::optional<std::string> unk_token;  ///< for other unknown characters; none: they are dropped
};

class Bpe {
 public:
  using Id = std::int32_t;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  /// `merges` are in rank order. Throws if the vocabulary lacks a part or the result of a merge;
  /// the message has `where` and the merge.
  Bpe(const StringMap<Id>& vocabulary, const Merges& merges, const BpeOptions& options,
      std::string_view where);
  ~Bpe();
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  /// Appends the ids of each piece. Threads: any; each call uses its own cache (2 MiB).
  void encode(std::span<const std::string_view> pieces, std::vector<std::int64_t>& ids) const;

  /// Whether both have the same merges in the same order. The vocabularies must be equal.
  [[nodiscard]] bool same_merges(const Bpe& other) const {
    return merges_ == other.merges_ && whole_.empty() == other.whole_.empty();
  }

 private:
  static constexpr std::int32_t kBasicPoints = 0x10000;
  struct Merge {
    std::int32_t rank = -1;
    Id id = -1;
    bool operator==(const Merge&) const = default;
  };
  struct Scratch;
  /// The symbols of a character before any merge.
  struct Initial {
    Id id = -1;             ///< its token
    std::vector<Id> bytes;  ///< byte tokens, if the character has no token
  };

  void read_merges(const StringMap<Id>& vocabulary, const Merges& merges, std::string_view where);
  void read_symbols(const StringMap<Id>& vocabulary);
  void find_junctions(const StringMap<Id>& vocabulary, const Merges& merges);
  [[nodiscard]] Initial initial_of(const StringMap<Id>& vocabulary,
                                   const std::string& character) const;
  [[nodiscard]] Merge find(Id left, Id right) const;
  [[nodiscard]] bool may_join(Id left, Id right) const;
  [[nodiscard]] Id unk() const;
  [[nodiscard]] Id id_of_point(std::int32_t point) const;
  template <class Emit>
  void for_each_symbol(std::string_view piece, bool& unk_seen, Emit&& emit) const;
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<Id>& out) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<Id>& out) const;
  void merge_symbols(Scratch& scratch, std::vector<Id>& out) const;
  void merge_few(std::vector<Id>& symbols, std::vector<Id>& out) const;
  void merge_many(Scratch& scratch, std::vector<Id>& out) const;

  bool byte_level_ = true;
  bool fuse_unk_ = false;
  std::optional<std::string> unk_token_;
  Id unk_ = -1;
  std::array<Initial, 256> initial_;  // by byte; without byte_level only ASCII
  std::array<Id, 256> byte_token_{};  // "<0xNN>"; all -1 without byte_fallback
  // Tokens of one non-ASCII character: a table for the basic plane, a map for the rest.
  std::vector<Id> basic_point_id_;
  std::unordered_map<std::int32_t, Id> other_point_id_;
  PairTable<Merge> merges_;
  // Pairs of symbols that some sequence of merges may join into one token. A piece is cut between
  // neighbours that are not such a pair.
  PairTable<bool> junctions_;
  bool knows_junctions_ = false;  // false if the vocabulary is too unusual
  StringMap<Id> whole_;           // only with ignore_merges; keys are bytes with byte_level

  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::shared_ptr<Scratch>> scratch_;  // not in use by any call
};

}  // namespace neap::text
