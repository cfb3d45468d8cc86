// Objects of a memory snapshot while it is read. Each dict becomes a compact record as soon as it
// is complete. Its keys determine the record's kind. No tree of Python objects is ever built.
//
// Model     Containers are nodes. They may be put into other containers and into the memo, and grow
//           until they are first used as an element. From then on they are settled and must not
//           change. Nothing is recursive: an element is always settled before its container.
//
// Threads   one user.
//
// Failure   functions return false and give the reason in error().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/recording.h"
#include "trace/snapshot_values.h"

namespace neap::trace::snapshot {

/// Events in pieces. It grows without moving events, and frees memory while it is copied out.
class EventPool {
 public:
  static constexpr std::size_t kPiece = 65536;
  void push(const Event& e) {
    if (size_ % kPiece == 0) pieces_.push_back(std::make_unique<Event[]>(kPiece));
    pieces_.back()[size_++ % kPiece] = e;
  }
  [[nodiscard]] Event& operator[](std::size_t i) { return pieces_[i / kPiece][i % kPiece]; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return pieces_.size() * kPiece * sizeof(Event); }
  /// Frees the pieces that end before `i`. Their events must not be used again.
  void forget_before(std::size_t i) {
    for (; forgotten_ < i / kPiece; ++forgotten_) pieces_[forgotten_].reset();
  }

 private:
  std::vector<std::unique_ptr<Event[]>> pieces_;
  std::size_t size_ = 0;
  std::size_t forgotten_ = 0;
};

/// A settled list or tuple: consecutive records of one kind, or values.
struct List {
  Tag kind = Tag::kNone;  ///< of the records; kNone: `first` is an index of list_values
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
struct Dict {
  std::uint64_t first = 0;  ///< index of dict_values: key, value, key, value ...
  std::uint64_t count = 0;  ///< number of pairs
};
struct SegmentRecord {
  Segment segment;
  std::uint16_t device = 0;
  Value blocks;
};
struct Annotation {
  std::uint64_t time_us = 0;
  std::uint32_t name = 0;  ///< text id
  std::uint16_t device = 0;
  bool begins = false;
};
struct History {
  std::uint64_t real_size = 0;
  std::uint32_t stack = 0;
};

/// Marks a block without its own address (old files).
inline constexpr std::uint64_t kNoAddress = ~std::uint64_t{0};
/// The kind of an event with an unknown action.
inline constexpr EventKind kUnknownAction{0};

class Store {
 public:
  Store();

  [[nodiscard]] Value text(std::string_view text) { return {Tag::kText, texts.intern(text)}; }
  [[nodiscard]] Value integer(std::int64_t n);
  [[nodiscard]] Value unsigned_integer(std::uint64_t n);
  [[nodiscard]] Value real(double x);
  [[nodiscard]] Value new_dict() { return new_node({Tag::kEmptyDict, 0}); }
  [[nodiscard]] Value new_list() { return new_node({Tag::kEmptyList, 0}); }
  /// Settles the items, in place.
  [[nodiscard]] bool new_tuple(std::span<Value> items, Value& out);
  [[nodiscard]] bool append(Value list, std::span<Value> items);
  /// `pairs`: key, value, key, value ... Settles the values in place.
  [[nodiscard]] bool set_items(Value dict, std::span<Value> pairs);
  /// Settles a node and returns its record, list or dict. Other values are unchanged.
  [[nodiscard]] bool settle(Value& v);

  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::uint64_t bytes() const;

  [[nodiscard]] bool is_integer(Value v) const {
    return v.tag() == Tag::kInt || v.tag() == Tag::kWide || v.tag() == Tag::kBig;
  }
  /// The integer `v` as 64 bits, in two's complement.
  [[nodiscard]] std::uint64_t bits(Value v) const {
    return v.tag() == Tag::kInt ? static_cast<std::uint64_t>(v.number()) : wide_[v.payload()];
  }
  [[nodiscard]] double real(Value v) const { return reals_[v.payload()]; }
  [[nodiscard]] const List& list(Value v) const { return lists_[v.payload()]; }
  /// Item `i` of a settled list.
  [[nodiscard]] Value item(const List& list, std::uint64_t i) const {
    return list.kind == Tag::kNone ? list_values_[list.first + i]
                                   : Value(list.kind, list.first + i);
  }
  [[nodiscard]] const Dict& dict(Value v) const { return dicts_[v.payload()]; }
  [[nodiscard]] Value key(const Dict& d, std::uint64_t i) const {
    return dict_values_[d.first + 2 * i];
  }
  [[nodiscard]] Value value(const Dict& d, std::uint64_t i) const {
    return dict_values_[d.first + 2 * i + 1];
  }

  TextTable texts;
  EventPool events;
  std::vector<Block> blocks;
  std::vector<SegmentRecord> segments;
  std::vector<Annotation> annotations;
  StackTable stacks;  ///< frames have text ids here
  /// Pairs of integers, and the index that events and segments use for them (0 = not used yet).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pools;
  std::vector<std::uint8_t> pool_index;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> used_pools{{0, 0}};
  bool too_many_pools = false;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> unknown_actions;  ///< text id and count

 private:
  struct OpenList {
    List run;
    std::vector<Value> values;  // used unless the list is a run of records
  };
  [[nodiscard]] Value new_node(Value v) {
    nodes_.push_back(v);
    return {Tag::kNode, nodes_.size() - 1};
  }
  [[nodiscard]] bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  [[nodiscard]] bool wrong(std::string_view record, Word key, Value v);
  [[nodiscard]] std::string describe(Value v) const;
  [[nodiscard]] bool unsigned_of(std::string_view record, Word key, Value v, std::uint64_t& out);
  [[nodiscard]] bool device_of(std::string_view record, Value v, std::uint16_t& out);
  [[nodiscard]] bool stack_of(std::string_view record, Value v, std::uint32_t& out);
  [[nodiscard]] bool pool_of(std::string_view record, Word key, Value v, std::uint8_t& out);
  [[nodiscard]] bool word_of(std::string_view record, Word key, Value v, Word& out);
  [[nodiscard]] std::uint32_t pool_pair(std::uint64_t owner, std::uint64_t id);

  static Tag kind_of(std::span<const Value> pairs);
  [[nodiscard]] bool convert(Tag kind, std::span<const Value> pairs, Value& out);
  void count_unknown_action(std::uint32_t name);
  [[nodiscard]] bool make_event(std::span<const Value> pairs, Value& out);
  [[nodiscard]] bool make_block(std::span<const Value> pairs, Value& out);
  [[nodiscard]] bool make_segment(std::span<const Value> pairs, Value& out);
  [[nodiscard]] bool make_frame(std::span<const Value> pairs, Value& out);
  [[nodiscard]] bool make_annotation(std::span<const Value> pairs, Value& out);
  [[nodiscard]] bool make_history(std::span<const Value> pairs, Value& out);
  [[nodiscard]] Value settle_list(OpenList& open);
  [[nodiscard]] Value make_stack(const OpenList& open);
  static void add(OpenList& open, Value v);

  std::vector<Value> nodes_;
  std::vector<std::uint64_t> wide_;
  std::vector<double> reals_;
  std::vector<List> lists_;
  std::vector<Value> list_values_;
  std::vector<Dict> dicts_;
  std::vector<Value> dict_values_;
  std::vector<History> histories_;
  std::vector<OpenList> open_lists_;
  std::vector<std::uint32_t> free_lists_;
  std::vector<std::vector<Value>> open_dicts_;
  std::vector<std::uint32_t> free_dicts_;
  std::vector<std::uint32_t> scratch_;
  Hasher hash_;
  IdSet frame_set_;
  IdSet stack_set_;
  IdSet pool_set_;
  std::uint64_t open_values_ = 0;
  std::string error_;
};

}  // namespace neap::trace::snapshot
