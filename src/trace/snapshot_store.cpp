#include "trace/snapshot_store.h"

#include <sys/random.h>

#include <algorithm>

namespace neap::trace::snapshot {
namespace {

bool is_record(Tag tag) {
  return tag >= Tag::kEvent && tag <= Tag::kHistory;
}
// A list of this length frees its buffer when it settles; buffers of shorter lists are reused.
constexpr std::size_t kKeptCapacity = 4096;

std::uint64_t process_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
    seed = reinterpret_cast<std::uintptr_t>(&seed) ^ 0x5851F42D4C957F2DULL;
  return seed;
}

}  // namespace

Hasher::Hasher() {
  static const std::uint64_t kSeed = process_seed();
  seed_ = kSeed;
}

TextTable::TextTable() {
  for (const std::string_view word : kWords) (void)intern(word);
}

Store::Store() {
  lists_.emplace_back();  // the shared empty list
}

std::uint64_t Store::bytes() const {
  const auto size = [](const auto& v) { return v.capacity() * sizeof(v[0]); };
  return texts.bytes() + events.bytes() + size(blocks) + size(segments) + size(annotations) +
         stacks.frames().capacity() * sizeof(Frame) + stacks.bytes() + size(pools) +
         size(pool_index) + size(nodes_) + size(wide_) + size(reals_) + size(lists_) +
         size(list_values_) + size(dicts_) + size(dict_values_) + size(histories_) +
         size(open_lists_) + size(open_dicts_) + open_values_ * sizeof(Value) * 2 +
         frame_set_.bytes() + stack_set_.bytes() + pool_set_.bytes();
}

Value Store::integer(std::int64_t n) {
  if (Value::fits(n)) return {Tag::kInt, static_cast<std::uint64_t>(n)};
  wide_.push_back(static_cast<std::uint64_t>(n));
  return {Tag::kWide, wide_.size() - 1};
}

Value Store::unsigned_integer(std::uint64_t n) {
  if (n <= static_cast<std::uint64_t>(INT64_MAX)) return integer(static_cast<std::int64_t>(n));
  wide_.push_back(n);
  return {Tag::kBig, wide_.size() - 1};
}

Value Store::real(double x) {
  reals_.push_back(x);
  return {Tag::kReal, reals_.size() - 1};
}

void Store::add(OpenList& open, Value v) {
  List& run = open.run;
  if (open.values.empty() && is_record(v.tag())) {
    if (run.count == 0) {
      run = {v.tag(), v.payload(), 1};
      return;
    }
    if (run.kind == v.tag() && run.first + run.count == v.payload()) {
      ++run.count;
      return;
    }
  }
  for (std::uint64_t i = 0; i < run.count; ++i) open.values.emplace_back(run.kind, run.first + i);
  run = {};
  open.values.push_back(v);
}

std::uint32_t Store::pool_pair(std::uint64_t owner, std::uint64_t id) {
  const std::array<std::uint64_t, 2> key{owner, id};
  return pool_set_.find_or_add(
      hash_(key.data(), sizeof key),
      [&](std::uint32_t at) { return pools[at] == std::pair(owner, id); },
      [&] {
        pools.emplace_back(owner, id);
        pool_index.push_back(0);
        return static_cast<std::uint32_t>(pools.size() - 1);
      });
}

Value Store::make_stack(const OpenList& open) {
  const auto same_kind = [](Value v) { return v.tag() == Tag::kFrame; };
  if (open.values.empty() ? open.run.kind != Tag::kFrame
                          : !std::all_of(open.values.begin(), open.values.end(), same_kind))
    return {};
  scratch_.clear();
  for (std::uint64_t i = 0; i < open.run.count; ++i)
    scratch_.push_back(static_cast<std::uint32_t>(open.run.first + i));
  for (const Value v : open.values) scratch_.push_back(static_cast<std::uint32_t>(v.payload()));
  const std::uint32_t id = stack_set_.find_or_add(
      hash_(scratch_.data(), scratch_.size() * sizeof(std::uint32_t)),
      [&](std::uint32_t known) {
        const auto other = stacks.stack(known);
        return std::equal(other.begin(), other.end(), scratch_.begin(), scratch_.end());
      },
      [&] { return stacks.add_stack(scratch_); });
  return {Tag::kStack, id};
}

Value Store::settle_list(OpenList& open) {
  if (open.run.count == 0 && open.values.empty()) return {Tag::kList, 0};
  if (const Value stack = make_stack(open); stack.tag() == Tag::kStack) return stack;
  List list = open.run;
  if (!open.values.empty()) {
    list = {Tag::kNone, list_values_.size(), open.values.size()};
    list_values_.insert(list_values_.end(), open.values.begin(), open.values.end());
  }
  lists_.push_back(list);
  return {Tag::kList, lists_.size() - 1};
}

bool Store::settle(Value& v) {
  if (v.tag() != Tag::kNode) return true;
  Value& node = nodes_[v.payload()];
  switch (node.tag()) {
    case Tag::kEmptyList:
      node = {Tag::kList, 0};
      break;
    case Tag::kOpenList: {
      const auto at = static_cast<std::uint32_t>(node.payload());
      OpenList& open = open_lists_[at];
      node = settle_list(open);
      open_values_ -= open.values.size();
      open.run = {};
      open.values.clear();
      if (open.values.capacity() > kKeptCapacity) open.values.shrink_to_fit();
      free_lists_.push_back(at);
      break;
    }
    case Tag::kEmptyDict:
      node = {Tag::kDict, dicts_.size()};
      dicts_.push_back({dict_values_.size(), 0});
      break;
    case Tag::kOpenDict: {
      const auto at = static_cast<std::uint32_t>(node.payload());
      std::vector<Value>& pairs = open_dicts_[at];
      const Tag kind = kind_of(pairs);
      if (kind != Tag::kDict) {
        Value record;
        if (!convert(kind, pairs, record)) return false;
        node = record;
      } else {
        node = {Tag::kDict, dicts_.size()};
        dicts_.push_back({dict_values_.size(), pairs.size() / 2});
        dict_values_.insert(dict_values_.end(), pairs.begin(), pairs.end());
      }
      open_values_ -= pairs.size();
      pairs.clear();
      if (pairs.capacity() > kKeptCapacity) pairs.shrink_to_fit();
      free_dicts_.push_back(at);
      break;
    }
    default:
      break;
  }
  v = node;
  return true;
}

bool Store::new_tuple(std::span<Value> items, Value& out) {
  for (Value& v : items)
    if (!settle(v)) return false;
  if (items.size() == 2 && is_integer(items[0]) && is_integer(items[1])) {
    out = {Tag::kPool, pool_pair(bits(items[0]), bits(items[1]))};
    return true;
  }
  OpenList open;
  for (const Value v : items) add(open, v);
  out = settle_list(open);
  return true;
}

bool Store::append(Value list, std::span<Value> items) {
  if (list.tag() != Tag::kNode) return fail("appends to something that is not a list");
  // A list that contains itself settles here and is then rejected as no longer open.
  for (Value& v : items)
    if (!settle(v)) return false;
  Value& node = nodes_[list.payload()];
  if (node.tag() == Tag::kEmptyList) {
    if (items.empty()) return true;
    if (free_lists_.empty()) {
      free_lists_.push_back(static_cast<std::uint32_t>(open_lists_.size()));
      open_lists_.emplace_back();
    }
    node = {Tag::kOpenList, free_lists_.back()};
    free_lists_.pop_back();
  }
  if (node.tag() != Tag::kOpenList) {
    return fail(node.tag() == Tag::kList || node.tag() == Tag::kStack
                    ? "changes a list after its use, or a list contains itself"
                    : "appends to something that is not a list");
  }
  OpenList& open = open_lists_[node.payload()];
  const std::size_t before = open.values.size();
  for (const Value v : items) add(open, v);
  open_values_ += open.values.size() - before;
  return true;
}

bool Store::set_items(Value dict, std::span<Value> pairs) {
  if (dict.tag() != Tag::kNode) return fail("sets items of something that is not a dict");
  for (Value& v : pairs)
    if (!settle(v)) return false;
  Value& node = nodes_[dict.payload()];
  if (node.tag() == Tag::kEmptyDict) {
    if (pairs.empty()) return true;
    // The common case: one instruction fills a dict, and its keys determine its kind.
    if (const Tag kind = kind_of(pairs); kind != Tag::kDict) {
      Value record;
      if (!convert(kind, pairs, record)) return false;
      node = record;
      return true;
    }
    if (free_dicts_.empty()) {
      free_dicts_.push_back(static_cast<std::uint32_t>(open_dicts_.size()));
      open_dicts_.emplace_back();
    }
    node = {Tag::kOpenDict, free_dicts_.back()};
    free_dicts_.pop_back();
  }
  if (node.tag() != Tag::kOpenDict) {
    return fail(node.tag() >= Tag::kEvent
                    ? "changes a dict after its use, or a dict contains itself"
                    : "sets items of something that is not a dict");
  }
  std::vector<Value>& open = open_dicts_[node.payload()];
  open.insert(open.end(), pairs.begin(), pairs.end());
  open_values_ += pairs.size();
  return true;
}

}  // namespace neap::trace::snapshot
