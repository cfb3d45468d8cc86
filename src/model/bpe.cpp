#include "model/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/format.h"
#include "base/status.h"
#include "model/utf8.h"

namespace neap::model {
namespace {

constexpr std::uint64_t kFree = ~std::uint64_t{0};
constexpr std::size_t kMaxCachedPiece = 64;      // bytes
constexpr std::size_t kMaxCachedPieces = 65536;  // some 10 MB

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

const std::array<int, 0x144>& bytes_by_point() {
  static const auto table = [] {
    std::array<int, 0x144> t{};
    t.fill(-1);
    for (int b = 0; b < 256; ++b)
      t[static_cast<std::size_t>(
          utf8::front(byte_characters()[static_cast<std::size_t>(b)]).value)] = b;
    return t;
  }();
  return table;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto table = [] {
    std::array<std::string, 256> t;
    std::int32_t next = 0x100;
    for (std::int32_t b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      utf8::append(t[static_cast<std::size_t>(b)], printable ? b : next++);
    }
    return t;
  }();
  return table;
}

std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const utf8::Point p = utf8::front(rest);
    const bool known =
        p.value >= 0 && p.value < 0x144 && bytes_by_point()[static_cast<std::size_t>(p.value)] >= 0;
    if (!known) return std::string(token);
    bytes += static_cast<char>(bytes_by_point()[static_cast<std::size_t>(p.value)]);
    rest.remove_prefix(p.bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) token += byte_characters()[static_cast<unsigned char>(c)];
  return token;
}

Bpe::Bpe(const StringMap<Id>& vocabulary,
         const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
         std::string_view where) {
  for (std::size_t b = 0; b < 256; ++b) {
    const auto it = vocabulary.find(byte_characters()[b]);
    byte_id_[b] = it == vocabulary.end() ? -1 : it->second;
  }
  const std::uint64_t slots = std::bit_ceil(std::max<std::uint64_t>(16, merges.size() * 2));
  mask_ = slots - 1;
  keys_.assign(slots, kFree);
  values_.resize(slots);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto id = [&](const std::string& token) {
      const auto it = vocabulary.find(token);
      if (it == vocabulary.end())
        throw Error(
            ErrorCode::kCorrupt,
            format("{}: merge {} (\"{}\" \"{}\") needs \"{}\", which is not in the vocabulary",
                   where, rank, left, right, token));
      return it->second;
    };
    const std::uint64_t key = key_of(id(left), id(right));
    std::uint64_t slot = mix(key) & mask_;
    while (keys_[slot] != kFree && keys_[slot] != key) slot = (slot + 1) & mask_;
    keys_[slot] = key;  // a repeated merge: the later rank, as the reference's map has it
    values_[slot] = {static_cast<std::int32_t>(rank), id(left + right)};
  }
  if (ignore_merges) {
    for (const auto& [token, id] : vocabulary) whole_.emplace(bytes_of_token(token), id);
  }
}

Bpe::Merge Bpe::find(Id left, Id right) const {
  const std::uint64_t key = key_of(left, right);
  for (std::uint64_t slot = mix(key) & mask_;; slot = (slot + 1) & mask_) {
    if (keys_[slot] == key) return values_[slot];
    if (keys_[slot] == kFree) return {};
  }
}

void Bpe::encode_piece(std::string_view piece, std::vector<Id>& out) const {
  if (!whole_.empty()) {
    if (const auto it = whole_.find(piece); it != whole_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  struct Symbol {
    Id id;
    std::int32_t previous, next;
  };
  struct Candidate {
    std::int32_t rank, position;
    Id id;
    bool operator>(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : position > o.position;
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const Id id = byte_id_[static_cast<unsigned char>(c)];
    if (id < 0) continue;  // as the reference does where there is no unk token
    const auto n = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, n - 1, n + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::int32_t left) {
    const std::int32_t right = symbols[static_cast<std::size_t>(left)].next;
    if (right < 0) return;
    const Merge m = find(symbols[static_cast<std::size_t>(left)].id,
                         symbols[static_cast<std::size_t>(right)].id);
    if (m.rank >= 0) queue.push({m.rank, left, m.id});
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(top.position)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (find(left.id, right.id).id != top.id) continue;  // stale
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    if (left.previous >= 0) offer(left.previous);
    offer(top.position);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next)
    out.push_back(symbols[static_cast<std::size_t>(i)].id);
}

void Bpe::encode(const std::vector<std::string_view>& pieces,
                 std::vector<std::int64_t>& ids) const {
  const std::unique_lock lock(cache_mutex_, std::try_to_lock);
  std::vector<Id> fresh;
  for (const std::string_view piece : pieces) {
    const bool cached = lock.owns_lock() && piece.size() <= kMaxCachedPiece;
    if (cached) {
      if (const auto it = cache_.find(piece); it != cache_.end()) {
        ids.insert(ids.end(), it->second.begin(), it->second.end());
        continue;
      }
    }
    fresh.clear();
    encode_piece(piece, fresh);
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    if (cached && cache_.size() < kMaxCachedPieces) cache_.emplace(piece, fresh);
  }
}

}  // namespace neap::model
