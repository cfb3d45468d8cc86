#include "slow_model.h"

#include <algorithm>

namespace neap::cache {

std::uint64_t SlowModel::round(std::uint64_t size) const {
  if (size < 512) return 512;
  int log2 = 0;
  while ((size >> (log2 + 1)) != 0) ++log2;
  const std::uint64_t d =
      s_.roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
  if (d > 1 && size > 512 * d) {
    const std::uint64_t floor = 1ull << log2;
    for (std::uint64_t i = 0; i <= d; ++i)
      if (floor + i * (floor / d) >= size) return floor + i * (floor / d);
  }
  return (size + 511) / 512 * 512;
}

std::uint64_t SlowModel::allowed() const {
  if (s_.memory_fraction == 0) return ~0ull;
  return static_cast<std::uint64_t>(s_.memory_fraction *
                                    static_cast<double>(source_.capacity().count()));
}

SlowModel::It SlowModel::insert(Block block) {
  auto at = std::find_if(blocks_.begin(), blocks_.end(),
                         [&](const Block& b) { return b.address > block.address; });
  return blocks_.insert(at, block);
}

SlowModel::It SlowModel::find(Address at) {
  return std::find_if(blocks_.begin(), blocks_.end(),
                      [&](const Block& b) { return b.address == at && b.mapped; });
}

std::vector<SlowModel::It> SlowModel::free_blocks(const Want& want) {
  std::vector<It> found;
  for (It it = blocks_.begin(); it != blocks_.end(); ++it)
    if (it->state == Block::kFree && it->mapped && it->stream == want.stream &&
        it->pool == want.pool && it->small == want.small)
      found.push_back(it);
  std::sort(found.begin(), found.end(), [](It a, It b) {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  });
  return found;
}

std::optional<SlowModel::It> SlowModel::search(const Want& want) {
  if (s_.memory_fraction > 0 && s_.garbage_collection_threshold > 0) ++clock(want);
  std::vector<It> candidates = free_blocks(want);
  std::erase_if(candidates, [&](It it) { return it->size < want.size; });
  if (candidates.empty()) return std::nullopt;
  std::size_t chosen = 0;
  if (candidates[0]->expandable) {
    if (s_.expandable_segments) {
      const auto reach = [&](It it) {
        const It next = std::next(it);
        const bool grows = next != blocks_.end() && next->segment == it->segment && !next->mapped;
        return it->size + (grows ? next->size : 0);
      };
      while (candidates[chosen]->expandable && chosen + 1 < candidates.size() &&
             reach(candidates[chosen + 1]) < reach(candidates[chosen]))
        ++chosen;
    } else {
      while (chosen < candidates.size() && candidates[chosen]->expandable) ++chosen;
      if (chosen == candidates.size()) return std::nullopt;
    }
  }
  const std::uint64_t limit = s_.max_split_size.count();
  const std::uint64_t size = candidates[chosen]->size;
  if (want.size < limit && size >= limit) return std::nullopt;
  if (want.size >= limit && size >= want.size + s_.max_non_split_rounding.count())
    return std::nullopt;
  return candidates[chosen];
}

std::optional<SlowModel::It> SlowModel::make(const Want& want, bool retry) {
  if (retry) ++retries;
  if (reserved + want.segment_size > allowed()) return std::nullopt;
  if (s_.expandable_segments) return grow(want);
  auto address = source_.allocate(Bytes(want.segment_size), want.stream, want.small);
  if (!address.ok()) return std::nullopt;
  ++device_allocs;
  reserved += want.segment_size;
  return insert({*address, want.segment_size, 0, next_segment_++, want.stream, want.pool,
                 want.small, false, true, Block::kFree, clock(want)});
}

bool SlowModel::map(It block, std::uint64_t size) {
  const std::uint64_t unit = page(block->small);
  const std::uint64_t length = (size + unit - 1) / unit * unit;
  if (!source_.map(block->address, Bytes(length)).ok()) return false;
  ++device_allocs;
  reserved += length;
  if (length < block->size) {
    Block rest = *block;
    rest.address += length;
    rest.size -= length;
    blocks_.insert(std::next(block), rest);
    block->size = length;
  }
  block->mapped = true;
  return true;
}

SlowModel::It SlowModel::merge_around(It block) {
  const auto joins = [](It a, It b) {
    return a->segment == b->segment && a->state == Block::kFree && b->state == Block::kFree &&
           a->mapped == b->mapped;
  };
  if (block != blocks_.begin() && joins(std::prev(block), block)) {
    const It before = std::prev(block);
    block->address = before->address;
    block->size += before->size;
    blocks_.erase(before);
  }
  const It after = std::next(block);
  if (after != blocks_.end() && joins(block, after)) {
    block->size += after->size;
    blocks_.erase(after);
  }
  block->born = clocks_[{block->pool, block->small}];
  return block;
}

std::optional<SlowModel::It> SlowModel::grow(const Want& want) {
  std::optional<It> start;
  for (It it = blocks_.begin(); it != blocks_.end() && !start; ++it) {
    if (it->mapped || it->stream != want.stream || it->pool != want.pool || it->small != want.small)
      continue;
    It from = it;
    if (it != blocks_.begin() && std::prev(it)->segment == it->segment &&
        std::prev(it)->state == Block::kFree)
      from = std::prev(it);
    std::uint64_t room = 0;
    for (It b = from; b != blocks_.end() && b->segment == it->segment && b->state == Block::kFree;
         ++b)
      room += b->size;
    if (room >= want.size) start = from;
  }
  if (!start) {
    const std::uint64_t unit = page(want.small);
    const std::uint64_t total = source_.capacity().count();
    const std::uint64_t length = (std::max(total + total / 8, want.size) + unit - 1) / unit * unit;
    auto address = source_.reserve(Bytes(length), want.stream, want.small);
    if (!address.ok()) return std::nullopt;
    reservations_[next_segment_] = {*address, length};
    start = insert({*address, length, 0, next_segment_++, want.stream, want.pool, want.small, true,
                    false, Block::kFree, 0});
  }
  It block = *start;
  if (!block->mapped) {
    if (!map(block, std::min(block->size, want.size))) return std::nullopt;
    block = merge_around(block);
  }
  while (block->size < want.size) {
    const It next = std::next(block);
    if (!map(next, std::min(want.size - block->size, next->size))) return std::nullopt;
    block = merge_around(next);
  }
  return block;
}

std::optional<Address> SlowModel::malloc(std::uint64_t size, Stream stream, std::uint32_t pool) {
  if (size == 0) return Address{0};
  const std::uint64_t rounded = round(size + version_.padding.count());
  const bool small = rounded <= (1ull << 20);
  const std::uint64_t segment = small ? (2ull << 20)
                                : rounded < (10ull << 20)
                                    ? s_.large_segment_size.count()
                                    : (rounded + (2ull << 20) - 1) / (2ull << 20) * (2ull << 20);
  const Want want{rounded, segment, stream, pool, small};
  released_.erase(pool);
  std::optional<It> block = search(want);
  if (!block) {
    if (s_.memory_fraction > 0 && s_.garbage_collection_threshold > 0) collect_garbage();
    block = make(want, false);
    if (!block && release_oversize(want)) block = make(want, false);
    if (!block && (pool == 0 || version_.private_pool_reclaims)) {
      release_all();
      block = make(want, true);
      if (!block && version_.search_after_release) block = search(want);
    }
    if (!block) return std::nullopt;
  }
  const It it = *block;
  const std::uint64_t rest = it->size - rounded;
  const bool split = small || s_.expandable_segments
                         ? rest >= 512
                         : rounded < s_.max_split_size.count() && rest > (1ull << 20);
  if (split) {
    Block tail = *it;
    tail.address += rounded;
    tail.size = rest;
    tail.born = clock(want);
    blocks_.insert(std::next(it), tail);
    it->size = rounded;
  }
  it->state = Block::kUsed;
  it->requested = size;
  allocated += it->size;
  return it->address;
}

void SlowModel::free(Address at, bool defer) {
  const It it = find(at);
  allocated -= it->size;
  it->state = Block::kPending;
  if (!defer) complete(at);
}

void SlowModel::complete(Address at) {
  const It it = find(at);
  it->state = Block::kFree;
  merge_around(it);
}

bool SlowModel::whole(It block) {
  const bool before = block != blocks_.begin() && std::prev(block)->segment == block->segment;
  const bool after =
      std::next(block) != blocks_.end() && std::next(block)->segment == block->segment;
  return !before && !after;
}

void SlowModel::drop_segment(It block) {
  static_cast<void>(source_.free(block->address, Bytes(block->size)));
  ++device_frees;
  reserved -= block->size;
  blocks_.erase(block);
}

void SlowModel::unmap_pages(It block) {
  const auto [base, length] = reservations_[block->segment];
  const std::uint64_t unit = page(block->small);
  Address begin = block->address;
  while ((begin - base) % unit != 0) begin += 512;
  const Address end = base + (block->address + block->size - base) / unit * unit;
  if (begin < end) {
    static_cast<void>(source_.unmap(begin, Bytes(end - begin)));
    ++device_frees;
    reserved -= end - begin;
    const Address block_end = block->address + block->size;
    const std::uint64_t now = clocks_[{block->pool, block->small}];
    if (block->address < begin) {
      Block head = *block;
      head.size = begin - block->address;
      head.born = now;
      blocks_.insert(block, head);
    }
    if (end < block_end) {
      Block tail = *block;
      tail.address = end;
      tail.size = block_end - end;
      tail.born = now;
      blocks_.insert(std::next(block), tail);
    }
    block->address = begin;
    block->size = end - begin;
    block->mapped = false;
    block = merge_around(block);
  }
  if (whole(block) && !block->mapped) {
    static_cast<void>(source_.unreserve(base, Bytes(length)));
    reservations_.erase(block->segment);
    blocks_.erase(block);
  }
}

void SlowModel::release(bool small, std::uint32_t pool) {
  std::vector<Address> segments;
  std::vector<Address> expandable;
  std::map<Stream, std::vector<It>> by_stream;
  for (It it = blocks_.begin(); it != blocks_.end(); ++it)
    if (it->state == Block::kFree && it->mapped && it->small == small && it->pool == pool)
      by_stream[it->stream].push_back(it);
  for (auto& [stream, list] : by_stream) {
    std::sort(list.begin(), list.end(), [](It a, It b) {
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    });
    for (It it : list) {
      if (it->expandable)
        expandable.push_back(it->address);
      else if (whole(it))
        segments.push_back(it->address);
    }
  }
  for (Address at : segments) drop_segment(find(at));
  for (Address at : expandable) unmap_pages(find(at));
}

void SlowModel::release_all() {
  std::vector<Address> pending;
  for (const Block& block : blocks_)
    if (block.state == Block::kPending) pending.push_back(block.address);
  for (Address at : pending) complete(at);
  release(false, 0);
  release(true, 0);
  for (const std::uint32_t pool : std::set<std::uint32_t>(released_)) {
    release(true, pool);
    release(false, pool);
  }
}

void SlowModel::empty_cache() {
  release_all();
}

bool SlowModel::release_oversize(const Want& want) {
  if (s_.max_split_size == kUnlimited) return false;
  const std::uint64_t key = std::max(want.size, s_.max_split_size.count());
  std::vector<It> list = free_blocks(want);
  const auto at = std::find_if(list.begin(), list.end(), [&](It it) { return it->size >= key; });
  if (at != list.end() && !(*at)->expandable) {
    drop_segment(*at);
    return true;
  }
  std::uint64_t sum = 0;
  for (auto it = at; it != list.begin() && sum < key;) {
    --it;
    if ((*it)->size < s_.max_split_size.count()) break;
    if ((*it)->expandable) continue;
    sum += (*it)->size;
    drop_segment(*it);
  }
  return sum >= key;
}

void SlowModel::collect_garbage() {
  const auto threshold =
      static_cast<std::uint64_t>(s_.garbage_collection_threshold * static_cast<double>(allowed()));
  if (reserved <= threshold) return;
  const std::uint64_t target = reserved - threshold;
  std::uint64_t reclaimed = 0;
  const std::uint64_t now = clocks_[{0, false}];
  for (bool freed = true; freed && reclaimed < target;) {
    freed = false;
    std::vector<It> idle;
    std::uint64_t ages = 0;
    for (It it = blocks_.begin(); it != blocks_.end(); ++it) {
      if (it->state != Block::kFree || !it->mapped || it->small || it->pool != 0 ||
          it->expandable || !whole(it))
        continue;
      idle.push_back(it);
      ages += now - it->born;
    }
    if (idle.empty()) break;
    const double mean = static_cast<double>(ages) / static_cast<double>(idle.size());
    for (It it : idle) {
      if (static_cast<double>(now - it->born) < mean) continue;
      reclaimed += it->size;
      drop_segment(it);
      freed = true;
    }
  }
}

}  // namespace neap::cache
