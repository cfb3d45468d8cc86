// The BPE model: symbols of a piece of text to ids by ranked merges.
//
// A symbol is a byte (byte-level vocabularies) or a character. Ids are those of Hugging Face's
// tokenizers library for valid UTF-8; bytes that are not UTF-8 encode as byte tokens where the
// vocabulary has them.
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
  bool byte_level = true;      ///< symbols are bytes in the alphabet's spelling, else characters
  bool ignore_merges = false;  ///< a piece that is a token needs no merges
  bool byte_fallback = false;  ///< characters without a token become their bytes "<0xNN>"
  bool fuse_unk = false;       ///< a run of unknown characters becomes one token
  std::optional<std::string> unk_token;  ///< for what is left; none: it is dropped
};

class Bpe {
 public:
  using Id = std::int32_t;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  /// `merges` in rank order. Throws, naming `where` and the merge, when a merge's parts or product
  /// are not in the vocabulary.
  Bpe(const StringMap<Id>& vocabulary, const Merges& merges, const BpeOptions& options,
      std::string_view where);
  ~Bpe();
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  /// Appends the ids of each piece. Threads: any; each call has a cache (2 MiB) of its own.
  void encode(std::span<const std::string_view> pieces, std::vector<std::int64_t>& ids) const;

  /// Whether both have the same merges in the same order, given the same vocabulary.
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
  /// What a character becomes before any merge.
  struct Initial {
    Id id = -1;             ///< its token
    std::vector<Id> bytes;  ///< without a token: its byte tokens
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
  std::array<Initial, 256> initial_;  // by byte; without byte_level, ASCII only
  std::array<Id, 256> byte_token_{};  // "<0xNN>"; all -1 without byte_fallback
  // Of tokens of one character that is not ASCII: the basic plane as a table, the rest as a map.
  std::vector<Id> basic_point_id_;
  std::unordered_map<std::int32_t, Id> other_point_id_;
  PairTable<Merge> merges_;
  // Pairs of symbols that some sequence of merges may bring into one token. A piece is cut where its
  // neighbours are no such pair.
  PairTable<bool> junctions_;
  bool knows_junctions_ = false;  // the vocabulary is not too unusual for that
  StringMap<Id> whole_;           // only with ignore_merges; by bytes with byte_level

  mutable std::mutex scratch_mutex_;
  mutable std::vector<std::shared_ptr<Scratch>> scratch_;  // those that no call uses
};

}  // namespace neap::text
