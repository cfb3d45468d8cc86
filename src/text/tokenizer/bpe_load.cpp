// Builds a BPE model from its vocabulary and merges.
#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {

Bpe::Bpe(const StringMap<Id>& vocabulary, const Merges& merges, const BpeOptions& options,
         std::string_view where)
    : byte_level_(options.byte_level), fuse_unk_(options.fuse_unk), unk_token_(options.unk_token) {
  if (unk_token_) {
    const auto it = vocabulary.find(*unk_token_);
    if (it != vocabulary.end()) unk_ = it->second;
  }
  byte_token_.fill(-1);
  if (options.byte_fallback) {
    for (int b = 0; b < 256; ++b) {
      const auto it = vocabulary.find(format("<0x{:02X}>", b));
      if (it != vocabulary.end()) byte_token_[static_cast<std::size_t>(b)] = it->second;
    }
  }
  read_symbols(vocabulary);
  read_merges(vocabulary, merges, where);
  find_junctions(vocabulary, merges);
  if (options.ignore_merges) {
    for (const auto& [token, id] : vocabulary)
      whole_.emplace(byte_level_ ? bytes_of_token(token) : token, id);
  }
}

Bpe::Initial Bpe::initial_of(const StringMap<Id>& vocabulary, const std::string& character) const {
  Initial initial;
  const auto it = vocabulary.find(character);
  if (it != vocabulary.end()) {
    initial.id = it->second;
    return initial;
  }
  for (const char c : character) {
    const Id id = byte_token_[static_cast<unsigned char>(c)];
    if (id < 0) return {};
    initial.bytes.push_back(id);
  }
  return initial;
}

void Bpe::read_symbols(const StringMap<Id>& vocabulary) {
  for (std::size_t b = 0; b < 256; ++b) {
    const bool ascii = b < 0x80;
    if (byte_level_) {
      initial_[b] = initial_of(vocabulary, byte_characters()[b]);
    } else if (ascii) {
      initial_[b] = initial_of(vocabulary, std::string(1, static_cast<char>(b)));
    }
  }
  if (byte_level_) return;
  for (const auto& [token, id] : vocabulary) {
    if (token.size() < 2 || token.size() > 4) continue;
    const utf8::Point p = utf8::front(token);
    if (p.value < 0x80 || p.bytes != token.size()) continue;
    if (p.value < kBasicPoints) {
      basic_point_id_.resize(kBasicPoints, -1);
      basic_point_id_[static_cast<std::size_t>(p.value)] = id;
    } else {
      other_point_id_.emplace(p.value, id);
    }
  }
}

void Bpe::read_merges(const StringMap<Id>& vocabulary, const Merges& merges,
                      std::string_view where) {
  merges_ = PairTable<Merge>(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& left = merges[rank].first;
    const std::string& right = merges[rank].second;
    const auto id = [&](const std::string& token) {
      const auto it = vocabulary.find(token);
      if (it == vocabulary.end() || token.empty())
        throw Error(
            ErrorCode::kCorrupt,
            format("{}: merge {} (\"{}\" \"{}\") needs \"{}\", which is not in the vocabulary",
                   where, rank, left, right, token));
      return it->second;
    };
    const Id left_id = id(left);
    const Id right_id = id(right);
    // A repeated merge gets the later rank, as in the reference.
    merges_.put(left_id, right_id, {static_cast<std::int32_t>(rank), id(left + right)});
  }
}

void Bpe::find_junctions(const StringMap<Id>& vocabulary, const Merges& merges) {
  constexpr Id kNone = -1;
  constexpr Id kSeveral = -2;
  // The first and last symbol of every token that merges can produce.
  std::unordered_map<Id, std::pair<Id, Id>> ends;
  const auto start = [&](Id id) {
    if (id >= 0) ends[id] = {id, id};
  };
  for (const Initial& initial : initial_) {
    start(initial.id);
    for (const Id id : initial.bytes) start(id);
  }
  for (const Id id : basic_point_id_) start(id);
  for (const auto& [point, id] : other_point_id_) start(id);
  for (const Id id : byte_token_) start(id);
  start(unk_);
  // A merged token is longer than its parts. In order of length, each part is therefore known
  // before it is used.
  std::vector<std::size_t> order(merges.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto length = [&](std::size_t i) {
    return merges[i].first.size() + merges[i].second.size();
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return length(a) < length(b); });
  std::vector<std::pair<Id, Id>> pairs;
  for (const std::size_t i : order) {
    const auto left = ends.find(vocabulary.find(merges[i].first)->second);
    const auto right = ends.find(vocabulary.find(merges[i].second)->second);
    if (left == ends.end() || right == ends.end()) continue;
    const auto [first, last_of_left] = left->second;
    const auto [first_of_right, last] = right->second;
    if (last_of_left == kSeveral || first_of_right == kSeveral) return;
    pairs.emplace_back(last_of_left, first_of_right);
    const Id product = vocabulary.find(merges[i].first + merges[i].second)->second;
    auto& ends_of = ends.try_emplace(product, kNone, kNone).first->second;
    const auto join = [](Id& known, Id found) {
      known = known == kNone || known == found ? found : kSeveral;
    };
    join(ends_of.first, first);
    join(ends_of.second, last);
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  junctions_ = PairTable<bool>(pairs.size() * 2);
  for (const auto& [left, right] : pairs) junctions_.put(left, right, true);
  knows_junctions_ = true;
}

}  // namespace neap::text
