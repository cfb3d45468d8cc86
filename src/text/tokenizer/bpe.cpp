#include "text/tokenizer/bpe.h"

#include <algorithm>

#include "base/format.h"
#include "base/status.h"
#include "text/tokenizer/bpe_cache.h"
#include "text/tokenizer/utf8.h"

namespace neap::text {
namespace {

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // positions are 32 bits wide
constexpr std::size_t kKeptScratch = 65536;              // elements
constexpr std::size_t kFewSymbols = 64;  // up to here a search of all pairs beats a heap

}  // namespace

struct Bpe::Scratch {
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
  std::vector<Id> symbols;  // of the piece or a part of it
  std::vector<Id> out;
  std::vector<Symbol> linked;
  std::vector<Candidate> heap;
  BpeCache cache;

  /// Frees memory that only a very long text needs.
  void shrink() {
    const auto limit = [](auto& list) {
      if (list.capacity() > kKeptScratch) std::decay_t<decltype(list)>().swap(list);
    };
    limit(symbols);
    limit(out);
    limit(linked);
    limit(heap);
  }
};

Bpe::~Bpe() = default;

bool Bpe::may_join(Id left, Id right) const {
  return !knows_junctions_ || junctions_.find(left, right) != nullptr;
}

Bpe::Merge Bpe::find(Id left, Id right) const {
  const Merge* merge = merges_.find(left, right);
  return merge == nullptr ? Merge{} : *merge;
}

Bpe::Id Bpe::unk() const {
  if (unk_ < 0)
    throw Error(ErrorCode::kCorrupt,
                format("The text has a character without a token, and the unk_token \"{}\" is not "
                       "in the vocabulary",
                       *unk_token_));
  return unk_;
}

Bpe::Id Bpe::id_of_point(std::int32_t point) const {
  if (point < kBasicPoints)
    return basic_point_id_.empty() ? -1 : basic_point_id_[static_cast<std::size_t>(point)];
  const auto it = other_point_id_.find(point);
  return it == other_point_id_.end() ? -1 : it->second;
}

// Calls emit(id, begin) for each symbol, in the order of the reference. An unknown character is
// added when the next known one is read, which may be after byte tokens.
template <class Emit>
void Bpe::for_each_symbol(std::string_view piece, bool& unk_seen, Emit&& emit) const {
  bool pending = false;
  const auto known = [&](Id id, std::size_t at) {
    if (pending) emit(unk_, at);
    pending = false;
    emit(id, at);
  };
  const auto unknown = [&](std::size_t at) {
    if (!unk_token_) return;
    if (pending && !fuse_unk_) emit(unk_, at);
    (void)unk();
    pending = unk_seen = true;
  };
  for (std::size_t at = 0; at < piece.size();) {
    const auto byte = static_cast<unsigned char>(piece[at]);
    if (byte_level_ || byte < 0x80) {
      const Initial& initial = initial_[byte];
      if (initial.id >= 0) {
        known(initial.id, at);
      } else if (!initial.bytes.empty()) {
        unk_seen = true;  // bytes do not determine symbols that share a position
        for (const Id id : initial.bytes) emit(id, at);
      } else {
        unknown(at);
      }
      ++at;
      continue;
    }
    const utf8::Point p = utf8::front(piece.substr(at));
    const Id id = p.value < 0 ? -1 : id_of_point(p.value);
    if (id >= 0) {
      known(id, at);
    } else {
      const std::string_view bytes = piece.substr(at, p.bytes);
      const auto token = [&](char c) { return byte_token_[static_cast<unsigned char>(c)]; };
      if (std::all_of(bytes.begin(), bytes.end(), [&](char c) { return token(c) >= 0; })) {
        for (std::size_t i = 0; i < bytes.size(); ++i) emit(token(bytes[i]), at + i);
      } else {
        unknown(at);
      }
    }
    at += p.bytes;
  }
  if (pending) emit(unk_, piece.size());
}

void Bpe::merge_few(std::vector<Id>& symbols, std::vector<Id>& out) const {
  std::array<Merge, kFewSymbols> merges;
  std::size_t n = symbols.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    std::uint32_t rank = ~std::uint32_t{0};
    for (std::size_t i = 0; i + 1 < n; ++i) {
      const auto r = static_cast<std::uint32_t>(merges[i].rank);  // -1 becomes the maximum
      if (r < rank) {
        rank = r;
        best = i;
      }
    }
    if (rank == ~std::uint32_t{0}) break;
    symbols[best] = merges[best].id;
    --n;
    for (std::size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  out.insert(out.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::merge_many(Scratch& scratch, std::vector<Id>& out) const {
  using Symbol = Scratch::Symbol;
  auto& symbols = scratch.linked;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const Id id : scratch.symbols) {
    const auto n = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, n - 1, n + 1});
  }
  symbols.back().next = -1;
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto offer = [&](std::int32_t left) {
    const std::int32_t right = at(left).next;
    if (right < 0) return;
    const Merge m = find(at(left).id, at(right).id);
    if (m.rank < 0) return;
    heap.push_back({m.rank, left, m.id});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(symbols.size()); ++i) offer(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = at(top.position);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = at(left.next);
    if (find(left.id, right.id).id != top.id) continue;  // outdated entry
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = top.position;
    if (left.previous >= 0) offer(left.previous);
    offer(top.position);
  }
  for (std::int32_t i = 0; i >= 0; i = at(i).next) out.push_back(at(i).id);
}

void Bpe::merge_symbols(Scratch& scratch, std::vector<Id>& out) const {
  if (scratch.symbols.empty()) return;
  if (scratch.symbols.size() <= kFewSymbols) {
    merge_few(scratch.symbols, out);
  } else {
    merge_many(scratch, out);
  }
}

// Cuts the symbols where no merge can join them, so that parts are short and can be cached.
void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<Id>& out) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  std::size_t begin = 0;  // start of the part in `symbols`
  bool unk_seen = false;
  const auto close = [&](std::size_t end) {
    if (symbols.empty()) return;
    // Do not use the cache in two cases. With unknown characters, the bytes of a part do not
    // determine its symbols. With ignore_merges, the cache treats a part as a separate piece.
    const std::size_t bytes = end - begin;
    if (unk_seen || !whole_.empty() || bytes > BpeCache::kMaxBytes) {
      merge_symbols(scratch, out);
      symbols.clear();
      return;
    }
    const BpeCache::Key key = BpeCache::key_of(piece.substr(begin, bytes));
    std::size_t count = 0;
    if (const Id* ids = scratch.cache.find(key, count)) {
      out.insert(out.end(), ids, ids + count);
    } else {
      const std::size_t before = out.size();
      merge_symbols(scratch, out);
      scratch.cache.put(key, std::span(out).subspan(before));
    }
    symbols.clear();
  };
  for_each_symbol(piece, unk_seen, [&](Id id, std::size_t at) {
    if (!symbols.empty() && !may_join(symbols.back(), id)) close(at);
    if (symbols.empty()) begin = at;
    symbols.push_back(id);
  });
  close(piece.size());
}

void Bpe::encode_piece(std::string_view piece, Scratch& scratch, std::vector<Id>& out) const {
  const bool cached = piece.size() <= BpeCache::kMaxBytes;
  BpeCache::Key key{};
  if (cached) {
    key = BpeCache::key_of(piece);
    std::size_t count = 0;
    if (const Id* ids = scratch.cache.find(key, count)) {
      out.insert(out.end(), ids, ids + count);
      return;
    }
  }
  if (!whole_.empty()) {
    if (const auto it = whole_.find(piece); it != whole_.end()) {
      out.push_back(it->second);
      if (cached) scratch.cache.put(key, {&it->second, 1});
      return;
    }
  }
  if (!cached) return encode_long(piece, scratch, out);
  scratch.symbols.clear();
  bool unk_seen = false;
  for_each_symbol(piece, unk_seen, [&](Id id, std::size_t) { scratch.symbols.push_back(id); });
  const std::size_t before = out.size();
  merge_symbols(scratch, out);
  scratch.cache.put(key, std::span(out).subspan(before));
}

void Bpe::encode(std::span<const std::string_view> pieces, std::vector<std::int64_t>& ids) const {
  std::shared_ptr<Scratch> scratch;
  {
    const std::lock_guard lock(scratch_mutex_);
    if (!scratch_.empty()) {
      scratch = std::move(scratch_.back());
      scratch_.pop_back();
    }
  }
  if (!scratch) scratch = std::make_shared<Scratch>();
  scratch->out.clear();
  for (const std::string_view piece : pieces) {
    if (piece.size() > kMaxPiece)
      throw Error(ErrorCode::kUnsupported,
                  format("A piece of {} bytes cannot be encoded; the limit is {}", piece.size(),
                         kMaxPiece));
    encode_piece(piece, *scratch, scratch->out);
  }
  ids.insert(ids.end(), scratch->out.begin(), scratch->out.end());
  scratch->shrink();
  const std::lock_guard lock(scratch_mutex_);
  scratch_.push_back(std::move(scratch));
}

}  // namespace neap::text
